"""Busy seconds of each rank's device: since the scheduler's start, and in the last seconds."""

import math
from collections import defaultdict
from collections.abc import Iterator

WINDOW_SECONDS = 10


class DeviceBusy:
    """Busy seconds by rank. A step counts in the time right before its answer."""

    def __init__(self) -> None:
        self._totals: dict[int, float] = {}
        self._recent: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        """Rank -> whole second -> seconds of work in it."""

    def add(self, rank: int, seconds: float, now: float) -> None:
        """Add the work of this rank's device on a step that is done."""
        self._totals[rank] = self._totals.get(rank, 0.0) + seconds
        recent, begun, last = self._recent[rank], now - seconds, int(now)
        if begun >= last:
            recent[last] += seconds
        else:
            for second in range(max(math.floor(begun), last - WINDOW_SECONDS), last + 1):
                recent[second] += min(now, second + 1) - max(begun, second)
        while len(recent) > WINDOW_SECONDS + 1:
            del recent[min(recent)]

    def totals(self) -> Iterator[tuple[int, float]]:
        """(rank, seconds) since the start."""
        yield from sorted(self._totals.items())

    def shares(self, now: float) -> Iterator[tuple[int, float]]:
        """(rank, share of the last `WINDOW_SECONDS` whole seconds in which its device worked)."""
        last = int(now)
        for rank, recent in sorted(self._recent.items()):
            worked = sum(seconds for second, seconds in recent.items() if last - WINDOW_SECONDS <= second < last)
            yield rank, min(1.0, worked / WINDOW_SECONDS)
