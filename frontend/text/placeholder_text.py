"""The encoding of plain text around parts whose ids are known: a template's special tokens around users' texts."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from quire.frontend.text.special_tokens import SpecialTokenMatch

PLACEHOLDER = "\uffff"
"""A token of the tokenizer that encodes the text, and of no other: it stands for a part with known ids."""


class PlaceholderText:
    """A text with placeholders, encoded whole: the beginning of a text may be encoded otherwise than what follows."""

    def __init__(self, text: str, specials: Iterable[SpecialTokenMatch], spelled: Sequence[int]) -> None:
        """`spelled`: the ids of the placeholder's own text, should a user have written it."""
        self._parts: list[str] = []
        self._fills: list[Sequence[int]] = []
        """Known ids between each two parts."""
        start = 0
        for one in specials:
            self._add(text[start : one.start], spelled)
            self._fills.append((one.token,))
            start = one.stop
        self._add(text[start:], spelled)

    def _add(self, text: str, spelled: Sequence[int]) -> None:
        parts = text.split(PLACEHOLDER)
        self._parts += parts
        self._fills += [spelled] * (len(parts) - 1)

    @property
    def text(self) -> str:
        """The text to encode."""
        return PLACEHOLDER.join(self._parts)

    def separate(self, positions: Iterable[int]) -> None:
        """Let no token reach across these positions of the text, which are in rising order."""
        parts, fills = self._parts, self._fills
        self._parts, self._fills = [], []
        begin = index = 0
        start = 0
        for position in positions:
            while position > begin + len(parts[index]):
                self._parts.append(parts[index][start:])
                self._fills.append(fills[index])
                begin += len(parts[index]) + 1
                index, start = index + 1, 0
            self._parts.append(parts[index][start : position - begin])
            self._fills.append(())
            start = position - begin
        self._parts += [parts[index][start:], *parts[index + 1 :]]
        self._fills += fills[index:]

    def ids(self, encoded: "np.ndarray[tuple[int], np.dtype[np.int32]]", placeholder_id: int) -> "array[int]":
        """The ids of the whole text, out of those with placeholders."""
        ids = array("i")
        start = 0
        for at, fill in zip(np.flatnonzero(encoded == placeholder_id).tolist(), self._fills, strict=True):
            ids.frombytes(encoded[start:at].tobytes())
            ids.extend(fill)
            start = at + 1
        ids.frombytes(encoded[start:].tobytes())
        return ids
