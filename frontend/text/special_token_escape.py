"""Text of special tokens in what a user wrote stays text.

Before a template is rendered, the first character of such a text is swapped for a stand-in that the request does not
contain (a Unicode noncharacter). From the rendered text with its stand-ins it is read where the template's own special
tokens are; they are swapped back before it is encoded. Templates see everything else as it is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Any

from quire.proto.messages.params import ParameterError

STAND_INS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
MAX_DEPTH = 64
PIECE = 16 << 10
"""Characters that one search looks at: it keeps the interpreter lock for less than a millisecond."""
MANY = 4096
"""Pieces that are joined at once, for the same reason."""


class Disguise:
    """Hides special tokens spelled in messages. What takes a text's length goes on in pieces: others take turns."""

    def __init__(self, special_texts: Sequence[str]) -> None:
        self._pattern = re.compile(longest_of(special_texts) or r"(?!)")
        self._beginnings = {text[:size] for text in special_texts for size in range(1, len(text))}
        self._endings = {text[size:] for text in special_texts for size in range(1, len(text))}
        self._longest = max(map(len, special_texts), default=0)

    def hide(self, text: str, stand_in: "StandIns") -> str:
        """The text with every special token broken, also one that a neighbouring text would complete."""
        whole: list[str] = []
        pieces: list[str] = []
        start = 0
        for at in merge(self.spelled(text), sorted(self._joints(text))):
            if at < start:
                continue
            pieces += (text[start:at], stand_in(text[at]))
            start = at + 1
            if len(pieces) > MANY:
                whole.append("".join(pieces))
                pieces.clear()
        return "".join((*whole, *pieces, text[start:])) if start else text

    def spelled(self, text: str) -> Iterator[int]:
        """Where special tokens begin. One search looks at no more than a piece and a token."""
        for start in range(0, len(text), PIECE):
            end = min(start + PIECE, len(text))
            while start < end and (match := self._pattern.search(text, start, end + self._longest)) is not None:
                if match.start() < end:
                    yield match.start()
                start = match.start() + 1

    def _joints(self, text: str) -> Iterator[int]:
        """Where the end of one begins that a text before might have begun, or one that a text behind might end."""
        begin = len(text) - len(text.lstrip())
        if any(text[begin : begin + size] in self._endings for size in range(1, self._longest)):
            yield begin
        end = len(text.rstrip())
        for size in range(1, min(self._longest, end + 1)):
            if text[end - size : end] in self._beginnings:
                yield end - size

    def hide_all(self, value: Any, stand_in: "StandIns", field: str, depth: int = 0) -> Any:
        """A JSON value with all its texts and keys hidden. Raises `ParameterError` for one that is too deep."""
        if isinstance(value, str):
            return self.hide(value, stand_in)
        if not isinstance(value, dict | list):
            return value
        if depth == MAX_DEPTH:
            raise ParameterError(field, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [self.hide_all(one, stand_in, field, depth + 1) for one in value]
        return {self.hide(key, stand_in): self.hide_all(one, stand_in, field, depth + 1) for key, one in value.items()}


class StandIns:
    """Which noncharacter stands for which character, in one request."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._free = [
            char for char in STAND_INS if not any(char in text or f"\\u{ord(char):04x}" in text for text in texts)
        ]
        self._used: dict[str, str] = {}

    def __call__(self, char: str) -> str:
        """Raises `ParameterError` when the chat itself uses up the noncharacters."""
        if char not in self._used:
            self._used[char] = self.mark()
        return self._used[char]

    def mark(self) -> str:
        """A noncharacter that stands for nothing. Raises `ParameterError` like the call."""
        if not self._free:
            raise ParameterError("chat.messages", "contain too many Unicode noncharacters; remove U+FDD0 to U+FDEF")
        return self._free.pop()

    @property
    def restore(self) -> dict[int, str]:
        return {ord(stand_in): char for char, stand_in in self._used.items()}


def restored(text: str, disguises: Mapping[int, str]) -> str:
    """The text with what the stand-ins stand for; the same object when it has none.

    One character after the other: `str.translate` asks a dictionary for each of a text's, a second for millions.
    """
    for code, char in disguises.items():
        if chr(code) in text:
            text = text.replace(chr(code), char)
    return text


def longest_of(texts: Iterable[str]) -> str:
    """A regular expression for the longest of the texts, of none if there are none.

    Common beginnings are shared, so a place where many of them might begin costs no more than the longest one's length.
    """
    by_first: dict[str, set[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], set()).add(text)
    return "|".join(map(_branch, by_first.values()))


def _branch(texts: set[str]) -> str:
    """For texts with the same first character."""
    first, last = min(texts), max(texts)
    size = next((at for at, char in enumerate(first) if char != last[at]), len(first))
    common = first[:size]
    rest = longest_of(text[len(common) :] for text in texts)
    if not rest:
        return re.escape(common)
    return f"{re.escape(common)}(?:{rest}){'?' if common in texts else ''}"
