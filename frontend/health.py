"""The health of the engine as this frontend sees it: the one place from which the probes of both APIs answer."""

import asyncio
import time
from typing import Literal

from quire.frontend.request.pipeline import RequestPipeline
from quire.frontend.stream.scheduler_client import ClientState, SchedulerClient

HealthState = ClientState | Literal["stalled"]


class Health:
    """Ready is for routing. Live is for who would end this engine: no restart from outside is quicker than its own."""

    def __init__(self, scheduler: SchedulerClient, pipeline: RequestPipeline, longest_loss_seconds: float) -> None:
        self._scheduler = scheduler
        self._pipeline = pipeline
        self._longest_loss_seconds = longest_loss_seconds
        self._was_ready = False
        self._lost_since = time.monotonic()
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
        """The engine works, drains, or its supervisor starts what is missing; false once it has failed, while it stalls
        and where no scheduler came within the time of a start."""
        state = self.state
        if state == "lost":
            return time.monotonic() - self._lost_since < self._longest_loss_seconds
        return state not in ("stalled", "failed")

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
        if self._scheduler.state != "lost":
            self._lost_since = time.monotonic()
        self._was_ready = self._was_ready or self._scheduler.state == "ready"
        self._changed.set()
        self._changed = asyncio.Event()

    def change(self) -> asyncio.Event:
        """The event of the next change: take it before a look, and wait for it after."""
        return self._changed
