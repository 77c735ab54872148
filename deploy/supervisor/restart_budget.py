"""Restarts of a dead process: the first at once, then after a growing pause, then none any more."""

from collections import deque


class RestartBudget:
    """At most `max_restarts` within `window_seconds`. The first is immediate, later ones wait 1, 2, 4 ... 30 s."""

    def __init__(self, max_restarts: int, window_seconds: float, first_pause: float = 1.0, cap: float = 30.0) -> None:
        self._max_restarts = max_restarts
        self._window_seconds = window_seconds
        self._first_pause = first_pause
        self._cap = cap
        self._deaths: deque[float] = deque()

    def pass_over(self, seconds: float) -> None:
        """Time that counts for no window: while a model of minutes loads, nothing can crash again."""
        self._deaths = deque(death + seconds for death in self._deaths)

    def spend(self, now: float) -> float | None:
        """Seconds to wait before this restart, or None when the budget is used up."""
        while self._deaths and now - self._deaths[0] >= self._window_seconds:
            self._deaths.popleft()
        recent = len(self._deaths)
        if recent >= self._max_restarts:
            return None
        self._deaths.append(now)
        return 0.0 if recent == 0 else min(self._cap, self._first_pause * 2.0 ** (recent - 1))
