"""The watchdog over the worker group's answers. No I/O."""

from quire.scheduler.peers.own_time import OwnTime


class StepWatchdog:
    """A timer of the oldest plan in flight, in our own time. A rank that hangs neither dies nor complains: its silence
    is the only sign.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._plan: tuple[int, int] | None = None
        self._since = 0.0
        self._time = OwnTime()

    def hangs(self, oldest: tuple[int, int] | None, now: float) -> bool:
        """The oldest plan has been in flight for too long. To be called often.

        `oldest`: epoch and step of the oldest plan that some rank has not acknowledged.
        """
        own = self._time.at(now)
        if oldest != self._plan:
            self._plan, self._since = oldest, own
        return oldest is not None and own - self._since > self._limit_seconds
