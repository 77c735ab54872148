"""The encoding of a long text in windows: in one piece, the library takes it a hundred times its size in memory.

Neighbouring windows share some text, and are joined within it. There they must have the same tokens at the same
characters, far from both ends: what a window does not see is then nothing that a token depends on. A BPE may be joined
between any two of these tokens, since tokens are a BPE's own where each two neighbours are. A word must begin there for
other models, and where a pattern finds the words: from one beginning on it finds the same. Windows that differ say
nothing: their text is encoded in one piece.
"""

import json
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

from tokenizers import Tokenizer, models

WINDOW = 32 << 10
"""Characters of a window."""
SHARED = 2 << 10
"""Characters that a window shares with the next one, at least; none of a quarter at both ends counts."""
PIECE = 4096
MATCH = 8
"""Least number of tokens that must be the same."""
PATTERNS = frozenset({"Split", "FixedLength", "UnicodeScripts"})
"""Pre-tokenizers whose cuts depend on where their word began: they count digits, say, or letters of two classes."""


def encode_in_windows(tokenizer: Tokenizer, text: str, before: Sequence[int] = ()) -> "array[int] | None":
    """The ids of a text, behind others, by a tokenizer that puts nothing around it; None where it must be encoded in
    one piece."""
    ids = array("i", before)
    within_words = isinstance(tokenizer.model, models.BPE) and PATTERNS.isdisjoint(_cuts(tokenizer))
    window, begin = _Window(tokenizer, text, 0), 0
    while window.end < len(text):
        following = _Window(tokenizer, text, window.start_of_next)
        joint = _joint(text, window, following, within_words)
        if joint is None:
            return None
        ids.extend(window.ids[begin : joint[0]])
        window, begin = following, joint[1]
    ids.extend(window.ids[begin:])
    return ids


class _Token(NamedTuple):
    """A token of a window, and the characters of the text that it stands for."""

    id: int
    start: int
    end: int
    place: int
    """Its index in the window."""


class _Window:
    """A part of the text, encoded by itself."""

    def __init__(self, tokenizer: Tokenizer, text: str, start: int) -> None:
        self.start = start
        self.end = min(start + WINDOW, len(text))
        self._encoding = tokenizer.encode_batch([text[start : self.end]], add_special_tokens=False)[0]
        self.ids: list[int] = self._encoding.ids

    def first_from(self, position: int) -> int:
        """Index of the first token that begins at a character of the text, or behind it."""
        return bisect_left(range(len(self.ids)), position, key=lambda index: self.token(index).start)

    def token(self, index: int) -> _Token:
        start, end = cast("tuple[int, int]", self._encoding.token_to_chars(index))
        return _Token(self.ids[index], self.start + start, self.start + end, index)

    def tokens(self, start: int, end: int) -> list[_Token]:
        """Those that begin between two characters of the text."""
        return [self.token(index) for index in range(self.first_from(start), self.first_from(end))]

    def begins_word(self, index: int) -> bool:
        """True for a token that is in another word than the one before it."""
        return index == 0 or bool(self._encoding.token_to_word(index) != self._encoding.token_to_word(index - 1))

    @property
    def start_of_next(self) -> int:
        """The beginning of a token, so that the next window cuts none: digits are counted from there."""
        position = self.end - SHARED
        index = self.first_from(position - SHARED // 4)
        return min(position, self.token(index).start) if index < len(self.ids) else position


def _joint(text: str, before: _Window, behind: _Window, within_words: bool) -> tuple[int, int] | None:
    """Indices of the token at which one window may end and the next go on; None where there is no such token."""
    edge = SHARED // 4
    first, last = behind.start + edge, before.end - edge
    ours, theirs = before.tokens(first, last), behind.tokens(first, last)
    if len(ours) < MATCH or [one[:3] for one in ours] != [one[:3] for one in theirs]:
        return None
    words = [before.begins_word(one.place) for one in ours]
    if words != [behind.begins_word(one.place) for one in theirs]:
        return None
    for (previous, one), their, is_word in zip(pairwise(ours), theirs[1:], words[1:], strict=True):
        if previous.end <= one.start and _begins(text[one.start]) and (within_words or is_word):
            return one.place, their.place
    return None


def _cuts(tokenizer: Tokenizer) -> list[str]:
    """The types of a tokenizer's pre-tokenizers."""
    if tokenizer.pre_tokenizer is None:
        return []
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    return [str(one["type"]) for one in state.get("pretokenizers", [state])]


def _begins(char: str) -> bool:
    """True for a character that no normalizer joins with the ones before it."""
    return unicodedata.category(char)[0] != "M" and not "\u1160" <= char <= "\u11ff"


def packed(ids: Sequence[int]) -> "array[int]":
    """The ids as a column of int32, made in pieces between which the event loop may take the interpreter lock."""
    column = array("i")
    for start in range(0, len(ids), PIECE):
        column.extend(ids[start : start + PIECE])
    return column
