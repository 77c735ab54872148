"""Places of the items of one sequence, and the positions that its tokens have by them.

Qwen2-VL (Wang et al., 2024), section 2.1: text counts on all axes alike. An item that begins at position p gives its
token at (row, column) the position (p, p + row, p + column), and what follows goes on at p + max(rows, columns).
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from quire.proto.messages.media import MediaSpan
from quire.worker.tables.slot_table import Int64

NUM_AXES = 3


class Spans:
    """The spans of one sequence, in order. `merge`: patches of a token's side."""

    def __init__(self, spans: Sequence[MediaSpan], merge: int) -> None:
        self.spans = tuple(spans)
        self._starts = [span.start for span in self.spans]
        self._columns = [span.grid[2] // merge for span in self.spans]
        self._shifts = [0]
        """Position less index: of the text before the first span, and of that behind each."""
        for span in self.spans:
            extent = max(span.grid[1:]) // merge
            self._shifts.append(self._shifts[-1] + extent - span.num_tokens)

    @property
    def stop(self) -> int:
        """Index behind the last span's last token."""
        return self.spans[-1].stop

    def within(self, begin: int, end: int) -> range:
        """Numbers of the spans of which some token is among the tokens [begin, end)."""
        first = bisect_right(self._starts, begin)
        if first and self.spans[first - 1].stop > begin:
            first -= 1
        return range(first, max(first, bisect_right(self._starts, end - 1)))

    def shift(self, index: int) -> int:
        """Position less index of the text at this index."""
        return self._shifts[bisect_right(self._starts, index)]

    def positions(self, begin: int, end: int) -> Int64:
        """int64 [3, end - begin]: of the tokens [begin, end) of the sequence."""
        indices = np.arange(begin, end)
        shifts = np.array(self._shifts)[np.searchsorted(self._starts, indices, side="right")]
        positions: Int64 = np.tile(indices + shifts, (NUM_AXES, 1))
        for number in self.within(begin, end):
            span, columns = self.spans[number], self._columns[number]
            first, last = max(begin, span.start), min(end, span.stop)
            places = np.arange(first, last) - span.start
            origin = span.start + self._shifts[number]
            inside = positions[:, first - begin : last - begin]
            inside[0], inside[1], inside[2] = origin, origin + places // columns, origin + places % columns
        return positions
