"""Places of the items of one sequence, and the positions that its tokens have by them.

Qwen2-VL (Wang et al., 2024), section 2.1: text counts on all axes alike. An item that begins at position p gives its
token at (row, column) the position (p, p + row, p + column), and what follows goes on at p + max(rows, columns). An
item of the same video has (p + elapsed, p + row, p + column), with p of the video's first item; what follows the video
goes on behind the largest position of its last item (Qwen2.5-VL, Bai et al., 2025, section 2.1).
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from quire.proto.messages.media import NO_VIDEO, PLAIN, MediaSpan
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
        self._origins: list[int] = []
        """Position where the item begins, or the video that it goes on with."""
        for span in self.spans:
            begins = span.elapsed == NO_VIDEO
            self._origins.append(span.start + self._shifts[-1] if begins else self._origins[-1])
            extent = max(max(span.grid[1:PLAIN]) // merge, span.elapsed + 1)
            self._shifts.append(self._origins[-1] + extent - span.stop)

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

    def rows(self, number: int, first: int, last: int) -> Int64:
        """int64 [last - first]: which of its rows an item gives to these tokens of its span; -1 for a break."""
        span, columns = self.spans[number], self._columns[number]
        places = np.arange(first, last) - span.start
        if not span.num_breaks:
            return places
        lines, columns_of = np.divmod(places, columns + 1)
        return np.where(columns_of < columns, lines * columns + columns_of, -1)

    def visible(self, begin: int, end: int) -> Int64:
        """int64 [end - begin]: the last token of its span for each of the tokens [begin, end); for text itself."""
        last: Int64 = np.arange(begin, end)
        for number in self.within(begin, end):
            span = self.spans[number]
            last[max(begin, span.start) - begin : span.stop - begin] = span.stop - 1
        return last

    def shift(self, index: int) -> int:
        """Position less index of the text at this index."""
        return self._shifts[bisect_right(self._starts, index)]

    def positions(self, begin: int, end: int) -> Int64:
        """int64 [3, end - begin]: of the tokens [begin, end) of the sequence."""
        indices = np.arange(begin, end)
        shifts = np.array(self._shifts)[np.searchsorted(self._starts, indices, side="right")]
        positions: Int64 = np.tile(indices + shifts, (NUM_AXES, 1))
        for number in self.within(begin, end):
            span, columns, origin = self.spans[number], self._columns[number], self._origins[number]
            first, last = max(begin, span.start), min(end, span.stop)
            places = np.arange(first, last) - span.start
            inside = positions[:, first - begin : last - begin]
            inside[0] = origin + max(0, span.elapsed)
            inside[1], inside[2] = origin + places // columns, origin + places % columns
        return positions
