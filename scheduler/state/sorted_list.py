"""A sorted list of outputs in pieces: to add, find and remove one never touches more than a piece of them."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from quire.scheduler.state.sequence import Sequence

Key = tuple[int, ...]
"""Sort key, unique among the members."""
MAX_PIECE = 1024


class SortedList:
    """Outputs sorted by key, in pieces of at most `MAX_PIECE` members."""

    def __init__(self) -> None:
        self._pieces: list[list[tuple[Key, Sequence]]] = []
        self._lasts: list[Key] = []
        """The last key of each piece."""

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for piece in self._pieces for _, sequence in piece)

    def add(self, key: Key, sequence: Sequence) -> None:
        if not self._pieces:
            self._pieces.append([(key, sequence)])
            self._lasts.append(key)
            return
        place = min(bisect_left(self._lasts, key), len(self._pieces) - 1)
        piece = self._pieces[place]
        insort(piece, (key, sequence))
        self._lasts[place] = piece[-1][0]
        if len(piece) > MAX_PIECE:
            half = len(piece) // 2
            self._pieces[place : place + 1] = [piece[:half], piece[half:]]
            self._lasts.insert(place, piece[half - 1][0])

    def remove(self, key: Key) -> None:
        """Remove the member with this key. Raises `KeyError` when there is none."""
        place, index = self._find(key)
        piece = self._pieces[place] if place < len(self._pieces) else []
        if index == len(piece) or piece[index][0] != key:
            raise KeyError(key)
        del piece[index]
        if piece:
            self._lasts[place] = piece[-1][0]
        else:
            del self._pieces[place], self._lasts[place]

    def first(self) -> Sequence | None:
        return self._pieces[0][0][1] if self._pieces else None

    def at_least(self, key: Key, skip: int = 0) -> Sequence | None:
        """The first member from this key on, or the one `skip` behind it. A shorter key is before every longer one that
        begins with it.
        """
        place, index = self._find(key)
        index += skip
        for piece in self._pieces[place:]:
            if index < len(piece):
                return piece[index][1]
            index -= len(piece)
        return None

    def num_before(self, key: Key) -> int:
        """Number of members whose key is smaller."""
        place, index = self._find(key)
        return sum(len(piece) for piece in self._pieces[:place]) + index

    def _find(self, key: Key) -> tuple[int, int]:
        place = bisect_left(self._lasts, key)
        if place == len(self._pieces):
            return place, 0
        # (key,) is before (key, member) and behind every member with a smaller key.
        return place, bisect_left(self._pieces[place], (key,))
