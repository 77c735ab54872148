"""The jobs of a tokenizer, done in a thread of this process (`encode_threads`) or in a child (`encode_child`).

A job goes to a child as a header and its data, which are copied in pieces: one call that copies megabytes keeps the
interpreter.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.messages.params import ParameterError

PIECE = 64 << 10
"""Characters copied at once."""
PIECE_IDS = 4 << 10
"""Ids copied at once."""
DONE, REFUSED = b"\0", b"\1"
"""First byte of a child's answer."""


class EncodeText(msgspec.Struct, frozen=True, tag=True):
    """Encode plain text. `keep`: at most so many ids, the first ones, or the last ones with `keep_last`.
    `ends`: the token with which a model that embeds wants every text to end stands behind it, where there is one."""

    remedy: ClassVar[str] = "shorten it or set truncate_prompt_tokens"
    special: bool
    parse_special: bool = False
    keep: int | None = None
    keep_last: bool = False
    ends: bool = False

    def ids(self, tokenizer: TextTokenizer, text: str) -> "array[int]":
        return encode_part(tokenizer, text, self)


class EncodeTemplate(msgspec.Struct, frozen=True, tag=True):
    """Encode a rendered template; `originals` as in `TextTokenizer.encode_template`. `special`: as every text is."""

    originals: dict[int, str]
    special: bool = False

    @property
    def remedy(self) -> str:
        """The way out for a text that is too long: one for a vector may be cut."""
        return EncodeText.remedy if self.special else "shorten it"

    def ids(self, tokenizer: TextTokenizer, text: str) -> "array[int]":
        ids = tokenizer.template_column(text, self.originals)
        return tokenizer.surrounded(ids) if self.special else ids


class DecodeIds(msgspec.Struct, frozen=True, tag=True):
    """Decode token ids, each within the vocabulary."""

    skip_special_tokens: bool

    def text(self, tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, self.skip_special_tokens)


Job = EncodeText | EncodeTemplate | DecodeIds


def text_payload(job: EncodeText | EncodeTemplate, text: str) -> bytearray:
    """The message to a child that encodes a text."""
    return _payload(job, (text[start : start + PIECE].encode() for start in range(0, len(text), PIECE)))


def ids_payload(job: DecodeIds, ids: Sequence[int]) -> bytearray:
    """The message to a child that decodes ids."""
    return _payload(
        job, (array("i", ids[start : start + PIECE_IDS]).tobytes() for start in range(0, len(ids), PIECE_IDS))
    )


def _payload(job: Job, pieces: Iterator[bytes]) -> bytearray:
    head = msgspec.msgpack.encode(job)
    payload = bytearray(len(head).to_bytes(4, "little") + head)
    for piece in pieces:
        payload += piece
    return payload


def answer(payload: bytes, tokenizer: TextTokenizer) -> bytes:
    """The child's answer to a message: a byte that says what follows, then ids as int32, UTF-8 text, or a refusal."""
    end = 4 + int.from_bytes(payload[:4], "little")
    job: Job = msgspec.msgpack.decode(memoryview(payload)[4:end], type=Job)
    if isinstance(job, DecodeIds):
        return DONE + job.text(tokenizer, memoryview(payload)[end:].cast("i").tolist()).encode()
    try:
        return b"".join((DONE, job.ids(tokenizer, str(memoryview(payload)[end:], "utf-8"))))
    except ParameterError as error:
        message = str(error).removeprefix(f"{error.field}: ")
        return REFUSED + msgspec.msgpack.encode((error.field, message, error.reason))


def result(answered: bytes) -> memoryview:
    """The data of a child's answer. Raises the `ParameterError` that the child met."""
    if answered[:1] == REFUSED:
        raise ParameterError(*msgspec.msgpack.decode(answered[1:], type=tuple[str, str, str]))
    return memoryview(answered)[1:]


def encode_part(tokenizer: TextTokenizer, text: str, job: EncodeText) -> "array[int]":
    """At most `keep` ids of one end; those that the tokenizer puts around every text stay around it."""
    if job.ends and tokenizer.end is not None:
        keep = None if job.keep is None else max(0, job.keep - 1)
        ids = encode_part(tokenizer, text, replace(job, keep=keep, ends=False))
        ids.append(tokenizer.end)
        return ids
    ids = tokenizer.column(text, job.special, job.parse_special)
    keep = job.keep
    if keep is None or len(ids) <= keep:
        return ids
    plain = tokenizer.column(text, add_special_tokens=False, parse_special=job.parse_special)
    num_around = len(ids) - len(plain)
    before = next((start for start in range(num_around + 1) if ids[start : start + len(plain)] == plain), None)
    if before is None or num_around >= keep:
        return ids[len(ids) - keep :] if job.keep_last else ids[:keep]
    room = keep - num_around
    return ids[:before] + (plain[-room:] if job.keep_last else plain[:room]) + ids[before + len(plain) :]
