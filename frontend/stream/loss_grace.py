"""The grace period of open requests after their scheduler was lost.

It is short while there is no scheduler (one starts in a moment) and long while the next one's workers load (a model
takes minutes). Each request's own deadline goes on meanwhile; see `SchedulerClient`.
"""


class LossGrace:
    """The state of one loss: from the loss until the requests are submitted again, or have failed.

    All times are seconds on the monotonic clock.
    """

    def __init__(self, scheduler_seconds: float, workers_seconds: float) -> None:
        self._scheduler_seconds = scheduler_seconds
        """Limit without any scheduler."""
        self._workers_seconds = workers_seconds
        """Limit with a scheduler that has no workers yet, from its welcome on."""
        self._since = 0.0
        self._scheduler_found = False
        self.is_waiting = False
        self.is_suspect = False
        """True where the requests themselves may have caused the loss; False where the scheduler is known to live and
        only dropped a frontend that had not beaten.
        """

    def note_suspicion(self, is_suspect: bool) -> None:
        """Record one more loss, or one that goes on. A suspicion lasts for as long as requests wait."""
        self.is_suspect = is_suspect or (self.is_suspect and self.is_waiting)

    def on_lost(self, now: float) -> None:
        """Begin to wait for a scheduler: the old one died, or the one that had followed it did."""
        if self._scheduler_found or not self.is_waiting:
            self._since = now
        self.is_waiting, self._scheduler_found = True, False

    def on_found(self, now: float) -> None:
        """Begin to wait for the workers of a scheduler that answered; further calls change nothing."""
        if not self._scheduler_found:
            self._since = now
        self._scheduler_found = True

    def add_pause(self, seconds: float, now: float) -> None:
        """Do not count a pause of this process that ended now: it could not have received anything."""
        self._since = min(now, self._since + seconds)

    def end(self) -> None:
        self.is_waiting = self._scheduler_found = False

    def expired(self, now: float) -> str:
        """The reason to give up waiting; empty while the grace lasts."""
        if not self.is_waiting:
            return ""
        limit = self._workers_seconds if self._scheduler_found else self._scheduler_seconds
        if now - self._since <= limit:
            return ""
        if self._scheduler_found:
            return f"the workers of the new scheduler were not ready within {limit:g} s"
        return f"the scheduler did not come back within {limit:g} s"
