"""The engine's drain: it ends when nothing lives, or ends what lives at its deadline."""

from quire.scheduler.core.effects import Effects
from quire.scheduler.core.live_requests import LiveRequests
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.events import ReportDrained

RESUBMIT_SECONDS = 2.0
"""Longest time that frontends take, after a scheduler's first worker group is ready, to resubmit what waited for it."""


class DrainProgress:
    """A drain from its request to its report."""

    def __init__(self, live_requests: LiveRequests) -> None:
        self._live_requests = live_requests
        self._deadline: float | None = None
        self._num_ended: int | None = None
        """Outputs that the drain's time-out ended; None when no drain is to be reported."""
        self._resubmitted_until = float("inf")
        """Time until which frontends may resubmit what an earlier scheduler had accepted: nothing is drained before."""

    @property
    def is_under_way(self) -> bool:
        """It was asked for, and not reported yet."""
        return self._num_ended is not None

    def begin(self, timeout_seconds: float, now: float) -> None:
        self._deadline = now + timeout_seconds
        self._num_ended = 0

    def on_group_ready(self, now: float) -> None:
        """Frontends resubmit when the first group is ready."""
        self._resubmitted_until = min(self._resubmitted_until, now + RESUBMIT_SECONDS)

    def on_failed(self, now: float) -> None:
        """The engine has failed: nothing that is resubmitted will run."""
        self._resubmitted_until = now

    def on_tick(self, group_epoch: Epoch | None, effects: Effects, now: float) -> None:
        """End what lives when the drain's time is over, and report the drain once nothing lives."""
        if self._num_ended is None:
            return
        live_requests = self._live_requests
        is_late = self._deadline is not None and now >= self._deadline
        if is_late:
            text = "the engine shut down before this output was complete"
            self._num_ended += live_requests.end_all(
                live_requests.registry.requests(), "error", group_epoch, effects, now, error="DRAINING", message=text
            )
        if not live_requests.num_live and (is_late or now >= self._resubmitted_until):
            effects.emit(ReportDrained(self._num_ended))
            self._num_ended = self._deadline = None
