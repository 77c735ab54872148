"""The supervisor keeps one engine alive: starts its units, watches for deaths, restarts, drains at the end.

A peer of the scheduler, never in the way of a token. One loop, one thread; every wait has a bound.
"""

import time
from collections.abc import Callable
from typing import Literal

from quire.deploy.supervisor.engine_spec import EngineSpec, Timers
from quire.deploy.supervisor.process import SupervisedProcess
from quire.deploy.supervisor.process_set import ProcessSet
from quire.deploy.supervisor.signals import SignalCounter
from quire.deploy.supervisor.units import FrontendUnit, GroupUnit, SchedulerUnit, Unit, UnitContext
from quire.proto.messages.requests import (
    Drain,
    Drained,
    FrontendMessage,
    GroupFailed,
    Refused,
    SchedulerMessage,
    Welcome,
)
from quire.proto.process import exit_codes

Phase = Literal["starting", "serving", "draining", "over"]


class Supervisor:
    """`run` returns the exit code when nothing is left running."""

    def __init__(
        self,
        engine: EngineSpec,
        timers: Timers,
        log: Callable[[str], None],
        relay: Callable[[str], None],
        on_ready: Callable[[Welcome], None],
    ) -> None:
        self._engine = engine
        self._timers = timers
        self._log = log
        self._on_ready = on_ready
        self._processes = ProcessSet(relay)
        context = UnitContext(engine, timers, self._processes, log, self._notify_scheduler, self._give_up)
        self._group = GroupUnit(context)
        self._scheduler = SchedulerUnit(context, self._group)
        self._frontends = [FrontendUnit(index, context) for index in range(engine.num_frontends)]
        self._units: list[Unit] = [self._scheduler, self._group, *self._frontends]
        """All units in the order of their start."""
        self._phase: Phase = "starting"
        self._exit_code = exit_codes.SUCCESS
        self._signals = SignalCounter()
        self._next_progress = 0.0
        self._deadline = 0.0
        """End of the phase: of the start or of the drain."""

    def run(self) -> int:
        with self._signals:
            try:
                self._begin()
                while self._phase != "over":
                    self._run_once()
            finally:
                self._processes.stop(self._timers.stop_grace, self._timers.stop_tier, lambda: self._signals.count > 1)
                self._scheduler.close()
        return self._exit_code

    def _begin(self) -> None:
        now = time.monotonic()
        self._deadline = now + self._timers.startup
        self._next_progress = now + self._timers.progress
        for unit in self._units:
            self._start(unit)

    def _start(self, unit: Unit) -> None:
        now = time.monotonic()
        unit.start(now)
        if unit is self._scheduler and self._phase == "draining":
            # told to while no scheduler was there to receive it, or to the one before
            self._notify_scheduler(Drain(max(0.0, self._deadline - self._timers.drain_margin - now)))

    def _notify_scheduler(self, message: FrontendMessage) -> None:
        self._scheduler.send(message)

    def _run_once(self) -> None:
        channel = self._scheduler.channel
        assert channel is not None
        due = time.monotonic() + self._timers.tick
        self._processes.wait([channel.socket], self._timers.tick)
        # by what the wait took longer we stood still, most likely with everybody else: nobody is late for it
        overslept = max(0.0, time.monotonic() - due)
        self._deadline += overslept
        self._group.started_at += overslept
        channel.flush()
        for message in channel.receive():
            self._on_message(message)
        for process in self._processes.reap():
            self._on_death(process)
        now = time.monotonic()
        for unit in self._units:
            if unit.is_due(now):  # asked anew for each: one that cannot be started puts off those after it
                unit.due = None
                try:
                    self._start(unit)
                except OSError as error:  # a death like any other
                    self._lose(unit, f"{unit.name} cannot be started: {error}")
        self._on_tick(now)
        if self._signals.count:
            self._on_signal()

    def _on_message(self, message: SchedulerMessage) -> None:
        self._scheduler.num_received += 1
        if self._phase == "over":
            return
        match message:
            case Welcome():
                self._on_welcome(message)
            case Drained() if self._phase == "draining":
                self._log(f"drained; {message.num_ended} outputs were ended by the time-out")
                self._phase = "over"
            case Refused():
                self._fail(f"the scheduler refused the supervisor: {message.reason}")

    def _on_welcome(self, welcome: Welcome) -> None:
        group = self._group
        was_ready = self._group_ready
        self._scheduler.welcome = welcome
        if self._phase == "starting" and welcome.state == "failed":
            self._fail(welcome.detail, exit_codes.REFUSED)
            return
        broken = welcome.epoch == group.epoch and not welcome.group_lives and welcome.state != "failed"
        if broken and self._phase != "starting" and group.has_processes:
            group.on_death(welcome.detail or "the scheduler gave the group up")
        if self._phase in ("serving", "draining") and self._group_ready and not was_ready:
            seconds = time.monotonic() - group.started_at
            self._log(f"ready again: epoch {group.epoch} after {seconds:.1f} s")
            for unit in (self._scheduler, group):
                unit.budget.pass_over(seconds)

    @property
    def _group_ready(self) -> bool:
        return self._group.is_ready(self._scheduler.welcome)

    def _on_death(self, process: SupervisedProcess) -> None:
        if self._phase == "over":
            return
        reason = process.exit_reason
        if self._phase == "starting":
            last_lines = "".join(f"\n  {line}" for line in process.last_lines)
            refused = process.exit_code == exit_codes.WORKER_REFUSED
            what = f"{process.name} refused this model or configuration" if refused else f"{reason} during the start"
            self._fail(f"{what}; its last lines:{last_lines}", exit_codes.REFUSED if refused else exit_codes.FAILED)
            return
        unit_of: dict[str, Unit] = {"scheduler": self._scheduler, "worker": self._group}
        self._lose(unit_of.get(process.role) or self._frontends[process.index], reason, process.exit_code)

    def _lose(self, unit: Unit, reason: str, exit_code: int | None = None) -> None:
        if unit is self._scheduler and self._exit_code != exit_codes.SUCCESS:
            # it had to give the last word of an engine that has failed
            self._group.stop()
            self._log(reason)
            self._phase = "over"
        else:
            unit.on_death(reason, exit_code)

    def _give_up(self, reason: str) -> None:
        """Let clients know why, then end."""
        if self._exit_code != exit_codes.SUCCESS:
            return
        self._exit_code = exit_codes.FAILED
        for unit in self._units:
            unit.due = None
        if not self._processes.with_role("scheduler"):
            self._fail(reason)
            return
        self._log(f"giving up: {reason}")
        self._notify_scheduler(GroupFailed(reason))
        self._drain(self._timers.farewell, margin=0.0)

    def _drain(self, seconds: float, margin: float) -> None:
        self._notify_scheduler(Drain(seconds))
        self._phase = "draining"
        self._deadline = time.monotonic() + seconds + margin

    def _on_signal(self) -> None:
        if self._phase in ("starting", "over") or self._signals.count > 1:
            self._phase = "over"
        elif self._phase == "serving":
            self._log(f"draining for up to {self._timers.drain:g} s; a second signal stops at once")
            self._drain(self._timers.drain, self._timers.drain_margin)

    def _on_tick(self, now: float) -> None:
        timers, group = self._timers, self._group
        if self._phase == "starting":
            self._check_start(now)
        elif self._phase == "draining" and now >= self._deadline:
            self._log("the drain's time is over")
            self._phase = "over"
        if self._phase in ("serving", "draining"):
            if group.has_processes and not self._group_ready and now - group.started_at > timers.startup:
                group.on_death(f"not ready within {timers.startup:g} s")
            for unit in (self._scheduler, *self._frontends):
                unit.kill_if_silent(now)

    def _check_start(self, now: float) -> None:
        welcome = self._scheduler.welcome
        if welcome is None:
            late = ["scheduler"]
        elif not self._group_ready:
            late = [f"{self._engine.world_size} worker(s)"]
        else:  # they take requests once they have heard of the group
            late = [frontend.name for frontend in self._frontends if not frontend.is_ready]
        if welcome is not None and not late:
            self._phase = "serving"
            self._on_ready(welcome)
        elif now >= self._deadline:
            self._fail(f"not ready within {self._timers.startup:g} s: {', '.join(late)}")
        elif now >= self._next_progress:
            self._next_progress = now + self._timers.progress
            self._log(f"waiting for {', '.join(late)}")

    def _fail(self, reason: str, exit_code: int = exit_codes.FAILED) -> None:
        self._log(f"error: {reason}")
        self._exit_code = exit_code
        self._phase = "over"
