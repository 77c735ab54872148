"""The vocabulary of a GGUF file: tokens with their kinds, and the parts of a tokenizer.json that every model shares."""

import re
from dataclasses import dataclass
from typing import Any, Final

from quire.deploy.gguf.config import BEGIN, ENDS
from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.worker.weights.parts import ModelError

TOKENS: Final = "tokenizer.ggml.tokens"
TYPES: Final = "tokenizer.ggml.token_type"
MERGES: Final = "tokenizer.ggml.merges"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
MARK: Final = re.compile(
    r"<\|(eot_id|eom_id|im_end|end|return|calls?|flush|endoftext|end_of_text|fim_pad|fim_repo|repo_name|file_sep)\|>"
    r"|<(end_of_turn|end_of_utterance|turn\||\|tool_response|eos|/s|fim[-_]pad|fim-repo|reponame|REPO|PAD)>"
    r"|<｜end▁of▁sentence｜>|_?<EOT>|\[(EOT|EOS|PAD)\]|\[e~\["
)
"""Texts of tokens that end an output, whatever the keys say: marks of turns, and those between files of code.

Source: llama.cpp's src/llama-vocab.cpp.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: tuple[str, ...]
    """By their ids."""
    types: tuple[int, ...]

    @property
    def used(self) -> tuple[str, ...]:
        """The tokens but for the room behind them."""
        return self.tokens[: max((index + 1 for index, kind in enumerate(self.types) if kind != UNUSED), default=0)]

    @property
    def of_model(self) -> dict[str, int]:
        """Tokens that the model of the tokenizer must have, for ids to have no holes: up to the last ordinary one.

        Behind them are those that are added, and room that is not used.
        """
        kinds = enumerate(self.types[: len(self.used)], 1)
        ordinary = (n for n, kind in kinds if kind not in (CONTROL, USER_DEFINED))
        return {token: index for index, token in enumerate(self.tokens[: max(ordinary, default=0)])}

    @property
    def marks(self) -> list[int]:
        """Control tokens that end an output by their text."""
        kinds = enumerate(zip(self.tokens, self.types, strict=True))
        found = {token: index for index, (token, kind) in kinds if kind == CONTROL and MARK.fullmatch(token)}
        if found.keys() & {"<|return|>", "<|flush|>"} and found.keys() & {"<|call|>", "<|calls|>"}:
            found.pop("<|end|>", None)  # of a message there, and others end the turn
        if "<|tool_response>" in found:
            found.pop("</s>", None)  # a tag of HTML there
        return list(found.values())

    def added(self) -> list[dict[str, Any]]:
        """Entries of `added_tokens`: control tokens, which are special, and what the model's makers defined."""
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": index, "content": token, **plain, "special": kind != USER_DEFINED}
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]


def read_vocabulary(metadata: Metadata, most: int) -> Vocabulary:
    """Tokens and types, at most so many; a mark is a control token unless merges make it of texts, too.

    Raises ModelError.
    """
    tokens = metadata.texts(TOKENS)
    types = metadata.integers(TYPES) if TYPES in metadata else [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(TYPES, f"has {len(types)} values for {len(tokens)} tokens; {REMEDY}")
    if not 0 < len(tokens) <= most:
        raise ModelError(TOKENS, f"has {len(tokens)} tokens, the model {most}; {REMEDY}")
    if wrong := [kind for kind in types if not NORMAL <= kind <= BYTE]:
        raise ModelError(TYPES, f"{wrong[0]} is no type of a token; {REMEDY}")
    seen: set[str] = set()
    for token, kind in zip(tokens, types, strict=True):
        if token in seen:
            raise ModelError(TOKENS, f"{token[:64]!r} is there twice; {REMEDY}")
        if not token and kind in (CONTROL, USER_DEFINED, UNKNOWN):
            raise ModelError(TOKENS, f"a token of type {kind} is empty; {REMEDY}")
        seen.add(token)
    written = {merge.replace(" ", "", 1) for merge in metadata.texts(MERGES)} if MERGES in metadata else set()
    marks = {token for token in tokens if MARK.fullmatch(token)} - written
    kinds = (CONTROL if token in marks else kind for token, kind in zip(tokens, types, strict=True))
    return Vocabulary(tuple(tokens), tuple(kinds))


def end_ids(metadata: Metadata, vocabulary: Vocabulary) -> list[int] | None:
    """The ids of all tokens that end an output, by the keys and by their texts; None: there is none."""
    named = [token for key in ENDS if (token := metadata.token(key)) is not None]
    return list(dict.fromkeys([*named, *vocabulary.marks])) or None


def token_of(metadata: Metadata, key: str, vocabulary: Vocabulary) -> str | None:
    """The text of the token whose id is said; None where it is not."""
    token = metadata.token(key)
    if token is None:
        return None
    if token >= len(vocabulary.tokens):
        raise ModelError(key, f"{token} is no token, there are {len(vocabulary.tokens)}; {REMEDY}")
    return vocabulary.tokens[token]


def post_processor(metadata: Metadata, vocabulary: Vocabulary, adds_begin: bool) -> dict[str, Any] | None:
    """The tokens around a text, as the metadata says; `adds_begin`: where it does not say whether one begins it."""
    around: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    named = {}
    begin, end = (token_of(metadata, key, vocabulary) for key in (BEGIN, ENDS[0]))
    if begin is not None and metadata.flag("tokenizer.ggml.add_bos_token", adds_begin):
        around.insert(0, {"SpecialToken": {"id": begin, "type_id": 0}})
        named[begin] = metadata.token(BEGIN)
    if end is not None and metadata.flag("tokenizer.ggml.add_eos_token", False):
        around.append({"SpecialToken": {"id": end, "type_id": 0}})
        named[end] = metadata.token(ENDS[0])
    if not named:
        return None
    return {
        "type": "TemplateProcessing",
        "single": around,
        "pair": [*around, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for text, token in named.items()},
    }
