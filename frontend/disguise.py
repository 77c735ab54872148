"""Text of special tokens in what a user wrote stays text.

Before a template is rendered, the first character of such a text is swapped for a stand-in that the request does not
contain (a Unicode noncharacter); after the template's own special tokens were cut out, the stand-ins are swapped back.
Templates see everything else as it is.
"""

import re
from collections.abc import Sequence
from typing import Any

from quire.proto.params import ParameterError

STAND_INS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
MAX_DEPTH = 64


class Disguise:
    """Hides special tokens spelled in messages. `restore` is a table for `str.translate`."""

    def __init__(self, special_texts: Sequence[str]) -> None:
        longest_first = sorted(special_texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._beginnings = {text[:size] for text in special_texts for size in range(1, len(text))}
        self._endings = {text[size:] for text in special_texts for size in range(1, len(text))}
        self._longest = max(map(len, special_texts), default=0)

    def hide(self, text: str, stand_in: "StandIns") -> str:
        """The text with every special token broken, also one that a neighbouring text would complete."""
        text = self._pattern.sub(lambda match: stand_in(match.group()[0]) + match.group()[1:], text)
        begin = len(text) - len(text.lstrip())
        for size in range(min(self._longest, len(text) - begin), 0, -1):
            if text[begin : begin + size] in self._endings:
                text = text[:begin] + stand_in(text[begin]) + text[begin + 1 :]
                break
        end = len(text.rstrip())
        for size in range(min(self._longest, end), 0, -1):
            if text[end - size : end] in self._beginnings:
                return text[: end - size] + stand_in(text[end - size]) + text[end - size + 1 :]
        return text

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
