"""A view of the core at one instant, from which questions are answered. Read only."""

from dataclasses import dataclass

from quire.proto.messages.message import EngineState
from quire.scheduler.core.core import Core
from quire.scheduler.core.live_requests import LiveRequests
from quire.scheduler.core.step_log import StepLog
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch


@dataclass(frozen=True, slots=True)
class View:
    """The parts of the core, at the time `now`."""

    now: float
    state: EngineState
    epoch: int
    group_epoch: Epoch | None
    """Slots, memory and plans of the living worker group; None while no group lives."""
    live_requests: LiveRequests
    counters: Counters
    step_log: StepLog


def view_of(core: Core, now: float) -> View:
    """The core as it stands between two events."""
    return View(now, core.state, core.epoch, core.group_epoch, core.live_requests, core.counters, core.step_log)
