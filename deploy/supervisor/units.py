"""The units of an engine: what is started, watched and restarted as one. Scheduler, worker group, each frontend.

The worker ranks are one failure unit: one death ends all, and the next group has a higher epoch.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from quire.deploy.supervisor.engine_spec import EngineSpec, Timers
from quire.deploy.supervisor.liveness import Liveness
from quire.deploy.supervisor.process_set import ProcessSet
from quire.deploy.supervisor.restart_budget import RestartBudget
from quire.deploy.supervisor.scheduler_channel import SchedulerChannel
from quire.proto.messages.requests import FrontendMessage, GroupLost, Welcome
from quire.proto.process import exit_codes


@dataclass(frozen=True, slots=True)
class UnitContext:
    """Parts of one engine that all its units share."""

    engine: EngineSpec
    timers: Timers
    processes: ProcessSet
    log: Callable[[str], None]
    notify_scheduler: Callable[[FrontendMessage], None]
    give_up: Callable[[str], None]
    """Ends the engine with this reason: a unit's restart budget is used up, or no restart can help."""


class Unit(ABC):
    """One failure unit: its next start, and how often it may come back."""

    def __init__(self, name: str, context: UnitContext) -> None:
        timers = context.timers
        self.name = name
        self.due: float | None = None
        """Moment of the next start, on the monotonic clock; None: it runs, or nothing is planned."""
        self.budget = RestartBudget(timers.max_restarts, timers.restart_window, timers.first_pause)
        self._context = context

    @abstractmethod
    def start(self, now: float) -> None:
        """Start its processes. Raises `OSError` where there is no process, descriptor or room on the disk."""

    def is_due(self, now: float) -> bool:
        return self.due is not None and self.due <= now

    def on_death(self, reason: str, exit_code: int | None = None) -> None:
        """A process of it has died, or could not be started (`exit_code` is None): plan the restart, or give up."""
        self._context.log(reason)
        self._plan_restart(reason)

    def _plan_restart(self, reason: str) -> bool:
        timers, now = self._context.timers, time.monotonic()
        pause = self.budget.spend(now)
        if pause is None:
            limit = f"more than {timers.max_restarts} deaths in {timers.restart_window:g} s"
            self._context.give_up(f"{self.name}: {limit}; {reason}")
            return False
        self._context.log(f"restarting {self.name}" + (f" in {pause:g} s" if pause else ""))
        self.due = now + pause
        return True


class WatchedUnit(Unit):
    """A unit of one process of the same name, whose silence is watched. A worker's is the scheduler's to judge."""

    def __init__(self, name: str, context: UnitContext, longest_silence: float) -> None:
        super().__init__(name, context)
        self._longest_silence = longest_silence
        self._liveness = Liveness(0.0)

    @abstractmethod
    def sign_of_life(self) -> int:
        """A number that changes as long as the process lives and is not held up; 0 before the first sign."""

    def kill_if_silent(self, now: float) -> None:
        """Kill the process if it hangs; its death is seen as any other."""
        process = self._context.processes.get(self.name)
        if process is None:
            return
        self._liveness.update(self.sign_of_life(), now)
        if self._liveness.is_lost(self._context.timers.first_sign, self._longest_silence):
            self._context.log(f"{self.name} gave no sign of life for {self._liveness.silence:.0f} s; killing it")
            process.kill()


class GroupUnit(Unit):
    """The worker group: all ranks of one epoch."""

    def __init__(self, context: UnitContext) -> None:
        super().__init__("group", context)
        self.epoch = 0
        self.started_at = 0.0

    @property
    def has_processes(self) -> bool:
        return bool(self._context.processes.with_role("worker"))

    def is_ready(self, welcome: Welcome | None) -> bool:
        """The scheduler's newest `Welcome` says that this epoch's group runs plans."""
        return welcome is not None and welcome.epoch == self.epoch and welcome.group_lives

    def start(self, now: float) -> None:
        self.epoch += 1
        self.started_at = now
        engine = self._context.engine
        for rank in range(engine.world_size):
            self._context.processes.start("worker", rank, engine.worker_command(rank, self.epoch))

    def stop(self) -> None:
        """Kill all ranks; no start is planned any more."""
        self._context.processes.kill("worker")
        self.due = None

    def on_death(self, reason: str, exit_code: int | None = None) -> None:
        self._context.processes.kill("worker")
        self._context.log(f"worker group of epoch {self.epoch} lost: {reason}")
        self._context.notify_scheduler(GroupLost(self.epoch, reason))
        if exit_code == exit_codes.WORKER_REFUSED:
            self._context.give_up(f"{reason}: it refused the model or its configuration")
        else:
            self._plan_restart(reason)


class SchedulerUnit(WatchedUnit):
    """The scheduler, the channel to it, and what it said last."""

    def __init__(self, context: UnitContext, group: GroupUnit) -> None:
        super().__init__("scheduler", context, context.timers.silence)
        self.channel: SchedulerChannel | None = None
        self.welcome: Welcome | None = None
        """The newest one of this scheduler process."""
        self.num_received = 0
        """Messages of this scheduler process: its sign of life, for it beats once a second."""
        self._group = group
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def start(self, now: float) -> None:
        engine = self._context.engine
        self._context.processes.start("scheduler", 0, engine.scheduler_command())
        if self.channel is not None:
            self.channel.close()
        self.welcome = None
        self.num_received = 0
        self._liveness = Liveness(now)
        self.channel = SchedulerChannel(self._zmq, engine.supervisor_address(), self._context.log)

    def send(self, message: FrontendMessage) -> None:
        assert self.channel is not None
        self.channel.send(message)

    def close(self) -> None:
        """After its process: the channel and its context."""
        if self.channel is not None:
            self.channel.close()
        self._zmq.term()

    def sign_of_life(self) -> int:
        return self.num_received

    def on_death(self, reason: str, exit_code: int | None = None) -> None:
        self._group.stop()
        self._context.log(reason)
        if self._plan_restart(reason):
            # the group belongs to the scheduler's life and follows it without a budget of its own
            self._group.due = self.due


class FrontendUnit(WatchedUnit):
    """One frontend process."""

    def __init__(self, index: int, context: UnitContext) -> None:
        super().__init__(f"frontend {index}", context, context.timers.frontend_silence)
        self._index = index

    @property
    def is_ready(self) -> bool:
        """It would take a request."""
        return self._context.engine.frontend_ready(self._index)

    def start(self, now: float) -> None:
        command = self._context.engine.frontend_command(self._index)
        self._context.processes.start("frontend", self._index, command)
        self._liveness = Liveness(now)

    def sign_of_life(self) -> int:
        return self._context.engine.frontend_heartbeat(self._index)
