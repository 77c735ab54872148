"""Busy seconds of each rank's device: since the scheduler's start, and in the last seconds."""

from collections import deque
from collections.abc import Iterator

WINDOW_SECONDS = 10


class DeviceBusy:
    """Busy seconds by rank. A step counts when its result or acknowledgement comes."""

    def __init__(self) -> None:
        self._totals: dict[int, float] = {}
        self._recent: dict[int, deque[tuple[int, float]]] = {}
        """Rank -> (whole second, seconds of work in it), oldest first."""

    def add(self, rank: int, seconds: float, now: float) -> None:
        """Add the work of this rank's device on a step that is done."""
        self._totals[rank] = self._totals.get(rank, 0.0) + seconds
        recent = self._recent.setdefault(rank, deque(maxlen=WINDOW_SECONDS + 1))
        second = int(now)
        before = recent.pop()[1] if recent and recent[-1][0] == second else 0.0
        recent.append((second, before + seconds))

    def totals(self) -> Iterator[tuple[int, float]]:
        """(rank, seconds) since the start."""
        yield from sorted(self._totals.items())

    def shares(self, now: float) -> Iterator[tuple[int, float]]:
        """(rank, share of the last `WINDOW_SECONDS` whole seconds in which its device worked)."""
        last = int(now)
        for rank, recent in sorted(self._recent.items()):
            worked = sum(seconds for second, seconds in recent if last - WINDOW_SECONDS <= second < last)
            yield rank, min(1.0, worked / WINDOW_SECONDS)
