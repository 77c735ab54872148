"""Seconds in which the scheduler itself ran: by these it judges who is silent. No I/O."""

LONGEST_TURN = 1.0
"""Seconds that one turn of the loop counts at most. While it stood still (a suspended machine, a stopped container)
nobody could be heard: that is nobody's silence.
"""


class OwnTime:
    """Read it every turn."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._read_at: float | None = None

    def at(self, now: float) -> float:
        """Seconds since the first reading; `now`: of the monotonic clock."""
        if self._read_at is not None:
            self._seconds += min(max(0.0, now - self._read_at), LONGEST_TURN)
        self._read_at = now
        return self._seconds
