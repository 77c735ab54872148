"""Incremental decoders: token ids to text, one token at a time, with the result of decoding all tokens at once.

Two decoders: a byte-level vocabulary (GPT-2 and its heirs) is a table of bytes, so a token costs a look-up and a step
of a UTF-8 decoder; every other one is decoded over a short window of tokens, but for single bytes (`<0xE1>`). Of these
the library shows U+FFFD for every byte of a run in which any belongs to no character, also for characters that a stream
has shown by then. Here only the bytes that form no character are U+FFFD, one for each.
"""

import re
from collections.abc import Mapping
from encodings import utf_8
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
MAX_PENDING_TOKENS = 16
"""Number of undecodable tokens in a row that is more than any character has bytes."""


class Detokenizer(Protocol):
    """An incremental decoder of one output."""

    def push(self, token_id: int) -> str:
        """Take a token; the text that it completes, empty while a character is incomplete."""

    def flush(self) -> str:
        """The rest, incomplete characters as U+FFFD. Nothing may be pushed afterwards."""


class TokenBytes:
    """The bytes of every token of a byte-level vocabulary."""

    def __init__(self, shown: list[bytes]) -> None:
        self._shown = shown
        self._without: dict[frozenset[int], list[bytes]] = {}
        """One table for each set of hidden tokens: with and without those that a parser must see."""

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "TokenBytes":
        """The table of a vocabulary. A token with a character outside the byte alphabet is its own UTF-8 text."""
        alphabet = _byte_alphabet()
        shown = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for text, token in vocabulary.items():
            try:
                shown[token] = bytes(alphabet[char] for char in text)
            except KeyError:
                shown[token] = text.encode()
        return cls(shown)

    def shown(self, token_id: int) -> bytes:
        """The bytes of one token; empty for an id that is no token."""
        return self._shown[token_id] if token_id < len(self._shown) else b""

    def detokenizer(self, hidden: frozenset[int]) -> Detokenizer:
        """`hidden`: tokens without text."""
        if not hidden:
            return ByteDetokenizer(self._shown)
        table = self._without.get(hidden)
        if table is None:
            table = [b"" if token in hidden else data for token, data in enumerate(self._shown)]
            self._without[hidden] = table
        return ByteDetokenizer(table)


class ByteDetokenizer:
    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decoder = utf_8.IncrementalDecoder(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id >= len(self._table):  # the logits may be wider than the vocabulary
            return ""
        data = self._table[token_id]
        if data.isascii() and not self._decoder.buffer:  # most tokens, for a third of the time
            return data.decode()
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class PieceBytes:
    """The bytes of every token of any other vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Mapping[str, int]) -> None:
        """`vocabulary`: that of a tokenizer that falls back on bytes, else empty."""
        self._tokenizer = tokenizer
        self._bytes = {token: int(text[3:5], 16) for text, token in vocabulary.items() if _BYTE.fullmatch(text)}
        self._before = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self._before_text = tokenizer.decode(self._before, skip_special_tokens=False)
        self._known: dict[int, bytes] = {}

    def shown(self, token_id: int) -> bytes:
        """The bytes of one token after others: at its beginning a text may lose a space."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._bytes:
            return bytes((self._bytes[token_id],))
        text = self._tokenizer.decode([*self._before, token_id], skip_special_tokens=False)
        return text.removeprefix(self._before_text).encode()

    def detokenizer(self, hidden: frozenset[int]) -> Detokenizer:
        """`hidden`: tokens without text."""
        return WindowDetokenizer(self._tokenizer, hidden, self._bytes)


class WindowDetokenizer:
    """A decoder for tokens whose text depends on neighbours (SentencePiece families): it decodes a window.

    The window holds the tokens of the last emission as context (a first token may lose its leading space) and the
    tokens since. Text that ends in U+FFFD may be an incomplete character and waits.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], bytes_of: Mapping[int, int]) -> None:
        """`hidden`: tokens without text. `bytes_of`: those that are a byte."""
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._bytes_of = bytes_of
        self._run = ByteRun()
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        byte = self._bytes_of.get(token_id)
        if byte is not None:
            return self._push_byte(token_id, byte)
        before = self._run.end()
        self._pending.append(token_id)
        text = self._new_text()
        if not text or (text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING_TOKENS):
            return before
        self._context, self._pending = self._pending, []
        return before + text

    def flush(self) -> str:
        text = self._run.end() + self._new_text()
        self._pending = []
        return text

    def _push_byte(self, token_id: int, byte: int) -> str:
        text, before = self._new_text(), self._pending
        is_first = not self._context and not text
        shown = self._run.push(byte)
        self._context, self._pending = [token_id], []
        if is_first and shown == " ":  # what a text may lose at its beginning
            return self._tokenizer.decode([*before, token_id], skip_special_tokens=False)
        return text + shown

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._context, skip_special_tokens=False)
        after = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=False)
        return after[len(before) :]


class ByteRun:
    """A run of single bytes that become characters."""

    def __init__(self) -> None:
        self._bytes = b""

    def push(self, byte: int) -> str:
        """Take a byte; the text that it completes, one U+FFFD for each byte that belongs to no character."""
        self._bytes += bytes((byte,))
        lost = ""
        while self._bytes:
            try:
                text, self._bytes = self._bytes.decode(), b""
                return lost + text
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    break
                lost += REPLACEMENT
                self._bytes = self._bytes[1:]
        return lost

    def end(self) -> str:
        """The rest, one U+FFFD for each byte."""
        lost, self._bytes = REPLACEMENT * len(self._bytes), b""
        return lost


def text_of(token_bytes: bytes) -> str:
    """The text of a token, with U+FFFD where its bytes form no character."""
    return token_bytes.decode(errors="replace")


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest is shifted to U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(0x100 + position): byte for position, byte in enumerate(shifted)}
