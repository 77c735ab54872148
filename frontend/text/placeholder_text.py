"""A text that is plain but for some stretches whose ids are known: what a template wrote around what users did."""

from collections.abc import Iterable, Sequence

import numpy as np

from quire.frontend.text.special_tokens import Found

PLACEHOLDER = "\uffff"
"""A token of the tokenizer that encodes the text, and of no other: it stands for a stretch with known ids."""


class PlaceholderText:
    """Encoded whole, for what comes first in a text may be encoded otherwise than what follows."""

    def __init__(self, text: str, specials: Iterable[Found], spelled: Sequence[int]) -> None:
        """`spelled`: the ids of the anchor's own text, should a user have written it."""
        self._parts: list[str] = []
        self._fills: list[Sequence[int]] = []
        """One between each two parts."""
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
        """What is to be encoded."""
        return PLACEHOLDER.join(self._parts)

    def separate(self, positions: Iterable[int]) -> None:
        """Let no token reach over these positions of the text, which rise."""
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

    def ids(self, encoded: "np.ndarray[tuple[int], np.dtype[np.int32]]", anchor: int) -> list[int]:
        """The text's, from those with anchors."""
        ids: list[int] = []
        start = 0
        for at, fill in zip(np.flatnonzero(encoded == anchor).tolist(), self._fills, strict=True):
            ids += encoded[start:at].tolist()
            ids += fill
            start = at + 1
        ids += encoded[start:].tolist()
        return ids
