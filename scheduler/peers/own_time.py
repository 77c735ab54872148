"""The scheduler's own time: seconds in which it ran. By these it judges which peers are silent. No I/O."""

LONGEST_TURN = 1.0
"""Seconds that one turn of the loop counts at most. While the scheduler stood still (a suspended machine, a stopped
container) it could receive nothing: no peer was silent.
"""


class OwnTime:
    """A clock that stands still while the scheduler does. It must be read every turn."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._read_at: float | None = None

    def at(self, now: float) -> float:
        """Own seconds since the first reading. `now` is the time of the monotonic clock."""
        if self._read_at is not None:
            self._seconds += min(max(0.0, now - self._read_at), LONGEST_TURN)
        self._read_at = now
        return self._seconds
