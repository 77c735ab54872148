"""The child process that compiles grammars: `python -m quire.frontend.sandbox.grammar_child`, in a sandbox."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from llguidance import LLMatcher

from quire.frontend.sandbox.child import serve
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.messages.structured import TokenizerUnfit, load_vocabulary, new_matcher

MAX_ERROR = 400
MAX_IGNORED = 32


class GrammarSetup(msgspec.Struct, frozen=True):
    """The tokenizer's directory, the width of the logits, and the tokens that end an output."""

    folder: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class Verdict(msgspec.Struct, frozen=True):
    """The result of compiling a grammar; an empty reason: it compiles."""

    reason: str = ""
    message: str = ""
    ignored: tuple[str, ...] = ()
    """Annotations of its schemas that nobody checks, as `keyword=value`."""


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """The function from `Structured` to `Verdict`, both as msgpack."""
    wanted = msgspec.msgpack.decode(setup, type=GrammarSetup)
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Structured).decode
    try:
        vocabulary = load_vocabulary(Path(wanted.folder), wanted.vocab_size, wanted.eos_token_ids)
    except TokenizerUnfit as error:
        unfit = encode(Verdict("UNSUPPORTED", str(error)))
        return lambda payload: unfit

    def check(payload: bytes) -> bytes:
        structured = decode(payload)
        ignored = set[str]()
        try:
            matcher = new_matcher(vocabulary, structured, ignored)
        except ParameterError as error:
            return encode(Verdict(error.reason, str(error).removeprefix(f"{error.field}: ")))
        _step(matcher, wanted.eos_token_ids)
        if matcher.is_error():
            return encode(Verdict("INVALID_GRAMMAR", f"{structured.kind}: {matcher.get_error()[:MAX_ERROR]}"))
        return encode(Verdict(ignored=tuple(sorted(ignored)[:MAX_IGNORED])))

    return check


def _step(matcher: LLMatcher, ends: tuple[int, ...]) -> None:
    """Take one allowed token: a grammar that is too large to be followed shows it only then."""
    mask = matcher.compute_bitmask()
    allowed = (token for token in range(8 * len(mask)) if mask[token >> 3] >> (token & 7) & 1)
    token = next((token for token in allowed if token not in ends), None)
    if token is not None and matcher.consume_token(token):
        matcher.compute_bitmask()


if __name__ == "__main__":
    serve(prepare)
