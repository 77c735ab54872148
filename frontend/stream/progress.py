"""Whether the engine steps while requests are open: what beats alone do not tell."""

STALLED_SECONDS = 60.0
"""How long a request may be open without any step before the engine counts as stalled; the scheduler's own time-out
of a step is longer and ends the workers.
"""


class Progress:
    """Fed with every beat's step. Seconds on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._step = (0, 0)
        self._since = now

    def beat(self, step: tuple[int, int], is_idle: bool, now: float) -> None:
        """`step`: epoch and number of the newest one. An idle engine need not step."""
        if step != self._step or is_idle:
            self._step, self._since = step, now

    def restart(self, now: float) -> None:
        """The engine's state changed: while workers load, nothing can step."""
        self._since = now

    def is_stalled(self, now: float) -> bool:
        return now - self._since > STALLED_SECONDS
