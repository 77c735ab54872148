"""The escaping of special tokens that a user spelled: they stay text.

Before a template is rendered, the first character of such a spelling is replaced by an escape character: a Unicode
noncharacter that the request does not contain. The rendered text shows where the template's own special tokens are;
it is unescaped before it is encoded. Templates see everything else as it is.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from typing import Any

from quire.proto.messages.params import ParameterError

ESCAPE_CHARS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode noncharacters."""
MAX_DEPTH = 64
PIECE = 16 << 10
"""Characters that one search looks at, so that it keeps the interpreter lock for less than a millisecond."""
MANY = 4096
"""Pieces joined at once, for the same reason."""


class SpecialTokenEscaper:
    """Escapes the special tokens of one tokenizer. Long texts are worked on in pieces: others take turns."""

    def __init__(self, special_texts: Sequence[str]) -> None:
        self._pattern = re.compile(longest_match_pattern(special_texts) or r"(?!)")
        self._beginnings = {text[:size] for text in special_texts for size in range(1, len(text))}
        self._endings = {text[size:] for text in special_texts for size in range(1, len(text))}
        self._sizes_by_last = _sizes(self._beginnings, -1)
        self._sizes_by_first = _sizes(self._endings, 0)
        self._longest = max(map(len, special_texts), default=0)

    def escape(self, text: str, escape_chars: "EscapeChars") -> str:
        """The text with every special token escaped, also one that a neighbouring text would complete."""
        whole: list[str] = []
        pieces: list[str] = []
        start = 0
        joints = sorted(self._joints(text))
        for at in merge(self.positions(text), joints) if joints else self.positions(text):
            if at < start:
                continue
            pieces += (text[start:at], escape_chars.escape(text[at]))
            start = at + 1
            if len(pieces) > MANY:
                whole.append("".join(pieces))
                pieces.clear()
        return "".join((*whole, *pieces, text[start:])) if start else text

    def positions(self, text: str) -> Iterator[int]:
        """The positions where special tokens begin. One search looks at no more than a piece and a token."""
        for start in range(0, len(text), PIECE):
            end = min(start + PIECE, len(text))
            while start < end and (match := self._pattern.search(text, start, end + self._longest)) is not None:
                if match.start() < end:
                    yield match.start()
                start = match.start() + 1

    def _joints(self, text: str) -> Iterator[int]:
        """The positions of parts of special tokens at the text's ends, which neighbouring texts might complete."""
        begin = len(text) - len(text.lstrip())
        sizes = self._sizes_by_first.get(text[begin : begin + 1], ())
        if any(text[begin : begin + size] in self._endings for size in sizes):
            yield begin
        end = len(text.rstrip())
        for size in self._sizes_by_last.get(text[end - 1 : end], ()):
            if size <= end and text[end - size : end] in self._beginnings:
                yield end - size

    def escape_json(self, value: Any, escape_chars: "EscapeChars", field: str, depth: int = 0) -> Any:
        """The JSON value with all its texts and keys escaped. Raises `ParameterError` for one that is too deep."""
        if isinstance(value, str):
            return self.escape(value, escape_chars)
        if not isinstance(value, dict | list):
            return value
        if depth == MAX_DEPTH:
            raise ParameterError(field, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [self.escape_json(one, escape_chars, field, depth + 1) for one in value]
        return {
            self.escape(key, escape_chars): self.escape_json(one, escape_chars, field, depth + 1)
            for key, one in value.items()
        }


class EscapeChars:
    """The escape characters of one request, and the characters that they stand for."""

    def __init__(self, texts: Callable[[], Sequence[str]]) -> None:
        """`texts`: all of the request. They are looked through for noncharacters of its own if one has to be found."""
        self._texts = texts
        self._used: dict[str, str] = {}

    @cached_property
    def _free(self) -> list[str]:
        texts = self._texts()
        return [
            char for char in ESCAPE_CHARS if not any(char in text or f"\\u{ord(char):04x}" in text for text in texts)
        ]

    def escape(self, char: str) -> str:
        """The escape character of `char`. Raises `ParameterError` when the chat itself uses up the noncharacters."""
        if char not in self._used:
            self._used[char] = self.reserve()
        return self._used[char]

    def reserve(self) -> str:
        """A noncharacter that stands for nothing. Raises `ParameterError` as `escape` does."""
        if not self._free:
            raise ParameterError("chat.messages", "contain too many Unicode noncharacters; remove U+FDD0 to U+FDEF")
        return self._free.pop()

    @property
    def originals(self) -> dict[int, str]:
        """Code of an escape character -> the character it stands for."""
        return {ord(escape_char): char for char, escape_char in self._used.items()}


def _sizes(parts: Iterable[str], at: int) -> dict[str, tuple[int, ...]]:
    """The sizes of the parts that have a character at their beginning (`at` 0) or their end (-1)."""
    sizes: dict[str, set[int]] = {}
    for part in parts:
        sizes.setdefault(part[at], set()).add(len(part))
    return {char: tuple(sorted(found)) for char, found in sizes.items()}


def unescaped(text: str, originals: Mapping[int, str]) -> str:
    """The text with the original characters; the same object when none is escaped.

    One escape character after the other: `str.translate` looks up every character, a second for millions.
    """
    for code, char in originals.items():
        if chr(code) in text:
            text = text.replace(chr(code), char)
    return text


def longest_match_pattern(texts: Iterable[str]) -> str:
    """A regular expression that matches the longest of the texts; empty where there are none.

    Common beginnings are shared, so a position where many might begin costs no more than the longest one's length.
    """
    by_first: dict[str, set[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], set()).add(text)
    return "|".join(map(_branch, by_first.values()))


def _branch(texts: set[str]) -> str:
    """The expression for texts with the same first character."""
    first, last = min(texts), max(texts)
    size = next((at for at, char in enumerate(first) if char != last[at]), len(first))
    common = first[:size]
    rest = longest_match_pattern(text[len(common) :] for text in texts)
    if not rest:
        return re.escape(common)
    return f"{re.escape(common)}(?:{rest}){'?' if common in texts else ''}"
