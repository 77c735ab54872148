"""Silence of a process, counted by a watcher that may itself be held up."""

LONGEST_TURN = 1.0
"""Seconds that one turn of the watcher counts at most. What both slept through is nobody's silence: a machine that was
suspended, a stopped container, a debugger on the watcher.
"""


class Liveness:
    """Silence of one process since its start or its last sign of life. Call `update` every turn."""

    def __init__(self, now: float) -> None:
        self.silence = 0.0
        """Seconds since the last sign, or since the start."""
        self.has_begun = False
        """There was a first sign: it has started up."""
        self._looked_at = now
        self._sign = 0

    def update(self, sign: int, now: float) -> None:
        """`sign`: any number that changes as long as the process lives and is not held up; 0 before the first."""
        self.silence += min(now - self._looked_at, LONGEST_TURN)
        self._looked_at = now
        if sign != self._sign:
            self._sign, self.silence, self.has_begun = sign, 0.0, True

    def is_lost(self, first_seconds: float, seconds: float) -> bool:
        """Silent for longer than it may be: `first_seconds` before the first sign, `seconds` after it."""
        return self.silence > (seconds if self.has_begun else first_seconds)
