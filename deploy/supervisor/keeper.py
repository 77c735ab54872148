"""The keeper of one engine: a pure state machine that says when to start, restart, drain and end its processes.

Events and times in, actions out. It has no process, socket, file, signal or clock; `SupervisedEngine` has them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from quire.deploy.supervisor.actions import Action, AnnounceReady, Kill, Log, Send, Terminate
from quire.deploy.supervisor.engine_spec import Timers
from quire.deploy.supervisor.process import ProcessRole
from quire.deploy.supervisor.shutdown import STOP_ORDER, Shutdown
from quire.deploy.supervisor.units import FrontendUnit, GroupUnit, SchedulerUnit, Unit, UnitContext
from quire.proto.messages.requests import Drain, Drained, GroupFailed, Refused, SchedulerMessage, Welcome
from quire.proto.process import exit_codes

Phase = Literal["starting", "serving", "draining", "stopping", "over"]


@dataclass(frozen=True, slots=True)
class Death:
    """A process has ended, and nobody of ours had ended its whole role."""

    role: ProcessRole
    index: int
    name: str
    reason: str
    exit_code: int | None
    last_lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class FrontendSign:
    """The state a frontend shows of itself."""

    is_ready: bool
    """It would take a request."""
    heartbeat: int
    """A number that changes with every turn of its event loop, about once a second; 0 before the first."""


class EngineKeeper:
    """One engine. `now` is in seconds of a monotonic clock and never goes back."""

    def __init__(self, world_size: int, num_frontends: int, timers: Timers) -> None:
        self.phase: Phase = "starting"
        self.exit_code = exit_codes.SUCCESS
        self.failure = ""
        """Reason of an end that nobody asked for, and the dead process's last line where it told why; else empty."""
        self._last_words: list[str] = []
        self._timers = timers
        self._actions: list[Action] = []
        context = UnitContext(timers, self._emit, self._give_up)
        self._group = GroupUnit(world_size, context)
        self._scheduler = SchedulerUnit(context, self._group)
        self._frontends = [FrontendUnit(index, context) for index in range(num_frontends)]
        self._units: list[Unit] = [self._scheduler, self._group, *self._frontends]
        """All units in the order of their start."""
        self._next_progress = 0.0
        self._deadline = 0.0
        """End of the start or of the drain."""
        self._shutdown: Shutdown | None = None
        self._num_signals = 0

    # ---- events

    def begin(self, now: float) -> None:
        """Every unit is due from now on."""
        self._deadline = now + self._timers.startup
        self._next_progress = now + self._timers.progress
        for unit in self._units:
            unit.due = now

    def units_due(self, now: float) -> Iterator[Unit]:
        """Units to start now, each asked anew: one that could not be started puts off those after it."""
        for unit in self._units:
            if unit.is_due(now):
                yield unit

    def start(self, unit: Unit, now: float) -> list[Action]:
        unit.due = None
        unit.start(now)
        if unit is self._scheduler and self.phase == "draining":
            # told to while no scheduler was there to receive it, or to the one before
            self._emit(Send(Drain(max(0.0, self._deadline - self._timers.drain_margin - now))))
        return self._take()

    def on_not_started(self, unit: Unit, error: str, now: float) -> list[Action]:
        """A start failed; from then on it is a death like any other."""
        unit.living.clear()
        reason = f"{unit.name} cannot be started: {error}"
        if self.phase == "starting":
            self._fail(reason, now)
        else:
            self._lose(unit, reason, now)
        return self._take()

    def on_message(self, message: SchedulerMessage, now: float) -> list[Action]:
        self._scheduler.num_received += 1
        if self.phase in ("stopping", "over"):
            return []
        match message:
            case Welcome():
                self._on_welcome(message, now)
            case Drained() if self.phase == "draining":
                self._emit(Log(f"drained; {message.num_ended} outputs were ended by the time-out"))
                self._stop(now, self._deadline)  # what frontends still prepare, the scheduler still takes
            case Refused():
                self._fail(f"the scheduler refused the supervisor: {message.reason}", now)
        return self._take()

    def on_death(self, death: Death, now: float) -> list[Action]:
        units: dict[ProcessRole, Unit] = {"scheduler": self._scheduler, "worker": self._group}
        unit = units.get(death.role) or self._frontends[death.index]
        unit.living.discard(death.index)
        by_itself = (death.exit_code or 0) > 0  # then its last line says why; who was killed did not come to it
        self._last_words = [*death.last_lines][-1:] if by_itself else []
        if self.phase == "starting":
            last_lines = "".join(f"\n  {line}" for line in death.last_lines)
            what, code = f"{death.reason} during the start", exit_codes.FAILED
            refused = exit_codes.REFUSED if death.role == "frontend" else exit_codes.WORKER_REFUSED
            if death.exit_code == refused:
                what, code = f"{death.name} refused this model or configuration", exit_codes.REFUSED
            self._fail(f"{what}; its last lines:{last_lines}", now, code)
            self.failure = "\n".join([what, *self._last_words])
        elif self.phase in ("serving", "draining"):
            self._lose(unit, death.reason, now, death.exit_code)
        return self._take()

    def on_signal(self, count: int, now: float) -> list[Action]:
        """Stop signals were received, `count` so far: the first asks for a drain, the second stops at once."""
        if count == self._num_signals:
            return []
        self._num_signals = count
        if self.phase == "serving" and count == 1:
            self._emit(Log(f"draining for up to {self._timers.drain:g} s; a second signal stops at once"))
            self._drain(now, self._timers.drain, self._timers.drain_margin)
        elif self.phase == "starting" or count > 1:
            self._stop(now)
        return self._take()

    def on_overslept(self, seconds: float) -> None:
        """The loop stood still for so long, most likely with everybody else: nobody is late for it."""
        self._deadline += seconds
        self._group.started_at += seconds

    def on_tick(self, frontends: Sequence[FrontendSign], now: float) -> list[Action]:
        """A turn of the loop, behind its other events."""
        group = self._group
        if self.phase == "starting":
            self._check_start(frontends, now)
        elif self.phase == "draining" and now >= self._deadline:
            self._emit(Log("the drain's time is over"))
            self._stop(now)
        if self.phase in ("serving", "draining"):
            if group.living and not self._group_ready and now - group.started_at > self._timers.startup:
                group.on_death(f"not ready within {self._timers.startup:g} s", now)
            self._scheduler.kill_if_silent(self._scheduler.num_received, now)
            for frontend, sign in zip(self._frontends, frontends, strict=True):
                frontend.kill_if_silent(sign.heartbeat, now)
        if self.phase == "stopping":
            self._go_on_stopping(now)
        return self._take()

    def stop(self, now: float) -> list[Action]:
        """The loop ends: so does this engine."""
        self._stop(now)
        return self._take()

    # ---- decisions

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    @property
    def _group_ready(self) -> bool:
        return self._group.is_ready(self._scheduler.welcome)

    def _on_welcome(self, welcome: Welcome, now: float) -> None:
        group = self._group
        was_ready = self._group_ready
        self._scheduler.welcome = welcome
        if self.phase == "starting" and welcome.state == "failed":
            self._fail(welcome.detail, now, exit_codes.REFUSED)
            return
        broken = welcome.epoch == group.epoch and not welcome.group_lives and welcome.state != "failed"
        if broken and self.phase != "starting" and group.living:
            group.on_death(welcome.detail or "the scheduler gave the group up", now)
        if self.phase in ("serving", "draining") and self._group_ready and not was_ready:
            seconds = now - group.started_at
            self._emit(Log(f"ready again: epoch {group.epoch} after {seconds:.1f} s"))
            for unit in (self._scheduler, group):
                unit.budget.pass_over(seconds)

    def _lose(self, unit: Unit, reason: str, now: float, exit_code: int | None = None) -> None:
        if unit is self._scheduler and self.exit_code != exit_codes.SUCCESS:
            # it had to give the last word of an engine that has failed
            self._group.stop()
            self._emit(Log(reason))
            self._stop(now)
        else:
            unit.on_death(reason, now, exit_code)

    def _give_up(self, reason: str, now: float) -> None:
        """Let clients know why, then end."""
        if self.exit_code != exit_codes.SUCCESS:
            return
        self.exit_code = exit_codes.FAILED
        self.failure = "\n".join([reason, *self._last_words])
        for unit in self._units:
            unit.due = None
        if not self._scheduler.living:
            self._fail(reason, now)
            return
        self._emit(Log(f"giving up: {reason}"))
        self._emit(Send(GroupFailed(reason)))
        self._drain(now, self._timers.farewell, margin=0.0)

    def _drain(self, now: float, seconds: float, margin: float) -> None:
        self._emit(Send(Drain(seconds)))
        self.phase = "draining"
        self._deadline = now + seconds + margin

    def _check_start(self, frontends: Sequence[FrontendSign], now: float) -> None:
        welcome = self._scheduler.welcome
        if welcome is None:
            late = ["scheduler"]
        elif not self._group_ready:
            late = [f"{self._group.world_size} worker(s)"]
        else:  # they take requests once they have heard of the group
            late = [unit.name for unit, sign in zip(self._frontends, frontends, strict=True) if not sign.is_ready]
        if welcome is not None and not late:
            self.phase = "serving"
            self._emit(AnnounceReady(welcome))
        elif now >= self._deadline:
            self._fail(f"not ready within {self._timers.startup:g} s: {', '.join(late)}", now)
        elif now >= self._next_progress:
            self._next_progress = now + self._timers.progress
            self._emit(Log(f"waiting for {', '.join(late)}"))

    def _fail(self, reason: str, now: float, exit_code: int = exit_codes.FAILED) -> None:
        self._emit(Log(f"error: {reason}"))
        self.exit_code = exit_code
        self.failure = reason
        self._stop(now)

    def _stop(self, now: float, drained_until: float = 0.0) -> None:
        """End all processes in order, over some turns. See `Shutdown`."""
        if self.phase in ("stopping", "over"):
            return
        self.phase = "stopping"
        for unit in self._units:
            unit.due = None
        self._shutdown = Shutdown(now, self._timers.stop_grace, self._timers.stop_tier, drained_until)

    def _go_on_stopping(self, now: float) -> None:
        assert self._shutdown is not None
        living = {unit.role for unit in self._units if unit.living}
        hurry = self._num_signals > 1
        for role in self._shutdown.roles_due(living, now, hurry):
            self._emit(Terminate(role))
        if self._shutdown.is_over(living, now, hurry):
            for role in STOP_ORDER:
                self._emit(Kill(role))
            self.phase = "over"
