"""The units of an engine: what is started, watched and restarted as one. Scheduler, worker group, each frontend.

The worker ranks are one failure unit: one death ends all, and the next group has a higher epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from quire.deploy.supervisor.actions import (
    Action,
    Kill,
    KillHung,
    Log,
    Send,
    StartFrontend,
    StartGroup,
    StartScheduler,
)
from quire.deploy.supervisor.engine_spec import Timers
from quire.deploy.supervisor.liveness import Liveness
from quire.deploy.supervisor.process import ProcessRole
from quire.deploy.supervisor.restart_budget import RestartBudget
from quire.proto.messages.requests import GroupLost, Welcome
from quire.proto.process import exit_codes


@dataclass(frozen=True, slots=True)
class UnitContext:
    """Parts of one engine's keeper that all its units share."""

    timers: Timers
    emit: Callable[[Action], None]
    give_up: Callable[[str, float], None]
    """Ends the engine with this reason at this time: a unit's restart budget is used up, or no restart can help."""


class Unit(ABC):
    """One failure unit: who lives of it, its next start, and how often it may come back."""

    def __init__(self, role: ProcessRole, name: str, context: UnitContext) -> None:
        timers = context.timers
        self.role = role
        self.name = name
        self.living: set[int] = set()
        """Indices of its processes that were started and whose end is not known."""
        self.due: float | None = None
        """Moment of the next start; None: it runs, or nothing is planned."""
        self.budget = RestartBudget(timers.max_restarts, timers.restart_window, timers.first_pause)
        self._context = context

    @abstractmethod
    def start(self, now: float) -> None:
        """Ask for its processes, which live from now on."""

    def is_due(self, now: float) -> bool:
        return self.due is not None and self.due <= now

    def on_death(self, reason: str, now: float, exit_code: int | None = None) -> None:
        """A process of it has died, or could not be started (`exit_code` is None): plan the restart, or give up."""
        self._context.emit(Log(reason))
        self._plan_restart(reason, now)

    def _plan_restart(self, reason: str, now: float) -> bool:
        timers = self._context.timers
        pause = self.budget.spend(now)
        if pause is None:
            limit = f"more than {timers.max_restarts} deaths in {timers.restart_window:g} s"
            self._context.give_up(f"{self.name}: {limit}; {reason}", now)
            return False
        self._context.emit(Log(f"restarting {self.name}" + (f" in {pause:g} s" if pause else "")))
        self.due = now + pause
        return True


class WatchedUnit(Unit):
    """A unit of one process of the same name, whose silence is watched. A worker's is the scheduler's to judge."""

    def __init__(self, role: ProcessRole, index: int, name: str, context: UnitContext, longest_silence: float) -> None:
        super().__init__(role, name, context)
        self._index = index
        self._longest_silence = longest_silence
        self._liveness = Liveness(0.0)

    def start(self, now: float) -> None:
        self._liveness = Liveness(now)
        self.living = {self._index}

    def kill_if_silent(self, sign: int, now: float) -> None:
        """Kill the process if it hangs; its death is seen as any other.

        `sign`: a number that changes as long as the process lives and is not held up; 0 before the first sign.
        """
        if not self.living:
            return
        self._liveness.update(sign, now)
        if self._liveness.is_lost(self._context.timers.first_sign, self._longest_silence):
            silence = f"{self._liveness.silence:.0f} s"
            self._context.emit(Log(f"{self.name} gave no sign of life for {silence}; killing it"))
            self._context.emit(KillHung(self.role, self._index))


class GroupUnit(Unit):
    """The worker group: all ranks of one epoch."""

    def __init__(self, world_size: int, context: UnitContext) -> None:
        super().__init__("worker", "group", context)
        self.epoch = 0
        self.started_at = 0.0
        self.world_size = world_size

    def is_ready(self, welcome: Welcome | None) -> bool:
        """The scheduler's newest `Welcome` says that this epoch's group runs plans."""
        return welcome is not None and welcome.epoch == self.epoch and welcome.group_lives

    def start(self, now: float) -> None:
        self.epoch += 1
        self.started_at = now
        self.living = set(range(self.world_size))
        self._context.emit(StartGroup(self.epoch))

    def stop(self) -> None:
        """Kill all ranks; no start is planned any more."""
        self._kill()
        self.due = None

    def on_death(self, reason: str, now: float, exit_code: int | None = None) -> None:
        self._kill()
        self._context.emit(Log(f"worker group of epoch {self.epoch} lost: {reason}"))
        self._context.emit(Send(GroupLost(self.epoch, reason)))
        if exit_code == exit_codes.WORKER_REFUSED:
            self._context.give_up(f"{reason}: it refused the model or its configuration", now)
        else:
            self._plan_restart(reason, now)

    def _kill(self) -> None:
        self.living.clear()
        self._context.emit(Kill("worker"))


class SchedulerUnit(WatchedUnit):
    """The scheduler, and what it said last."""

    def __init__(self, context: UnitContext, group: GroupUnit) -> None:
        super().__init__("scheduler", 0, "scheduler", context, context.timers.silence)
        self.welcome: Welcome | None = None
        """The newest one of this scheduler process."""
        self.num_received = 0
        """Messages of this scheduler process: its sign of life, for it beats once a second."""
        self._group = group

    def start(self, now: float) -> None:
        super().start(now)
        self.welcome = None
        self.num_received = 0
        self._context.emit(StartScheduler())

    def on_death(self, reason: str, now: float, exit_code: int | None = None) -> None:
        self._group.stop()
        self._context.emit(Log(reason))
        if self._plan_restart(reason, now):
            # the group belongs to the scheduler's life and follows it without a budget of its own
            self._group.due = self.due


class FrontendUnit(WatchedUnit):
    """One frontend process."""

    def __init__(self, index: int, context: UnitContext) -> None:
        super().__init__("frontend", index, f"frontend {index}", context, context.timers.frontend_silence)

    def start(self, now: float) -> None:
        super().start(now)
        self._context.emit(StartFrontend(self._index))
