"""How long open requests wait once their scheduler is lost: briefly for another one, then as long as workers may load.

A model takes minutes to load, a scheduler a moment. Each request's own deadline goes on meanwhile; see
`SchedulerLink`.
"""


class Patience:
    """Begins with a loss and ends when the requests are submitted again, or have failed. Seconds, monotonic clock."""

    def __init__(self, scheduler_seconds: float, workers_seconds: float) -> None:
        self._scheduler_seconds = scheduler_seconds
        """Without any scheduler."""
        self._workers_seconds = workers_seconds
        """With a scheduler that has no workers yet, from its welcome on."""
        self._since = 0.0
        self._found = False
        self.is_waiting = False
        self.is_suspect = False
        """The scheduler was lost, perhaps by what it ran; it did not merely forget a process that had not beaten."""

    def suspect(self, is_suspect: bool) -> None:
        """One more loss, or one that goes on. What is suspect stays so for as long as requests wait."""
        self.is_suspect = is_suspect or (self.is_suspect and self.is_waiting)

    def lost(self, now: float) -> None:
        """No scheduler is there: it died, or the one that had followed it did."""
        if self._found or not self.is_waiting:
            self._since = now
        self.is_waiting, self._found = True, False

    def found(self, now: float) -> None:
        """One is there, and loads; what it says later changes nothing."""
        if not self._found:
            self._since = now
        self._found = True

    def overslept(self, seconds: float, now: float) -> None:
        """So long this process stood still until now, and could not hear a scheduler: that is no waiting."""
        self._since = min(now, self._since + seconds)

    def end(self) -> None:
        self.is_waiting = self._found = False

    def spent(self, now: float) -> str:
        """Why nobody should wait any longer; empty while they should."""
        if not self.is_waiting:
            return ""
        limit = self._workers_seconds if self._found else self._scheduler_seconds
        if now - self._since <= limit:
            return ""
        who = "the workers of the new scheduler were not ready" if self._found else "the scheduler did not come back"
        return f"{who} within {limit:g} s"
