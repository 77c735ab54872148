"""The health of the engine as this frontend sees it: the one place from which the probes of both APIs answer."""

import asyncio
from time import monotonic
from typing import Literal

from quire.frontend.request.pipeline import RequestPipeline
from quire.frontend.stream.scheduler_client import ClientState, SchedulerClient

HealthState = ClientState | Literal["stalled"]
HEALING = ("lost", "stalled")
"""States that the supervisor and the scheduler end by themselves: a new scheduler comes, or workers that step."""


class Health:
    """Ready is for routing. Live is for who would end this engine: no restart from outside is quicker than its own."""

    def __init__(self, scheduler: SchedulerClient, pipeline: RequestPipeline, longest_healing_seconds: float) -> None:
        self._scheduler = scheduler
        self._pipeline = pipeline
        self._longest_healing_seconds = longest_healing_seconds
        self._was_ready = False
        self._ill_since: float | None = monotonic()
        """Monotonic time since which the state is one of `HEALING`; None while it is another."""
        self._changed = asyncio.Event()
        scheduler.on_change = self.refresh

    @property
    def state(self) -> HealthState:
        """The engine's state; draining as well where this frontend alone takes nothing any more."""
        seen = self._scheduler.progress()
        return "draining" if self._pipeline.is_draining and seen != "failed" else seen

    @property
    def is_ready(self) -> bool:
        """A new request would be taken here, and would run."""
        return self.state == "ready"

    @property
    def is_live(self) -> bool:
        """The engine works, drains, or heals by itself, which may take as long as a start; false once it has failed."""
        if self._ill_since is not None and monotonic() - self._ill_since >= self._longest_healing_seconds:
            return False
        return self.state != "failed"

    @property
    def is_up(self) -> bool:
        """The engine is live, and was ready before: who waits for its first start waits for this."""
        return self.is_live and (self._was_ready or self.state not in ("starting", "lost"))

    @property
    def has_scheduler(self) -> bool:
        """The scheduler answers and has not failed."""
        return self._scheduler.welcome is not None and self._scheduler.state not in ("lost", "failed")

    @property
    def has_workers(self) -> bool:
        """A worker group is up, and steps when there is work."""
        welcome = self._scheduler.welcome
        return self.has_scheduler and welcome is not None and welcome.group_lives and not self._scheduler.is_stalled

    def refresh(self) -> None:
        """Wake who waits for a change."""
        state = self._scheduler.progress()
        self._was_ready = self._was_ready or state == "ready"
        if state not in HEALING:
            self._ill_since = None
        elif self._ill_since is None:
            self._ill_since = monotonic()
            asyncio.get_running_loop().call_later(self._longest_healing_seconds, self._wake)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def change(self) -> asyncio.Event:
        """The event of the next change: take it before a look, and wait for it after."""
        return self._changed
