"""The engine's progress while it has work, which beats alone do not show."""

STALLED_SECONDS = 60.0
"""Time that an engine may have work without any step before it counts as stalled.

The scheduler's own time-out of a step is longer and ends the workers.
"""


class StepProgress:
    """The newest step, and since when it is the newest. Seconds on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._step = (0, 0)
        self._since = now

    def on_beat(self, step: tuple[int, int], is_idle: bool, now: float) -> None:
        """Take the (epoch, number) of the newest step. An idle engine need not step."""
        if step != self._step or is_idle:
            self._step, self._since = step, now

    def restart(self, now: float) -> None:
        """Begin anew after a change of the engine's state: while workers load, nothing can step."""
        self._since = now

    def is_stalled(self, now: float) -> bool:
        return now - self._since > STALLED_SECONDS
