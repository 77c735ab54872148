"""Keeps one engine alive: starts its processes, watches for deaths, restarts what may be restarted, drains at the end.

A peer of the scheduler, never in the way of a token. One loop, one thread; every wait has a bound.
The worker ranks are one failure unit: one death ends all, and the next group has a higher epoch.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import zmq

from quire.deploy.supervisor.engine_spec import EngineSpec, Timers
from quire.deploy.supervisor.liveness import Liveness
from quire.deploy.supervisor.process import SupervisedProcess
from quire.deploy.supervisor.process_set import ProcessSet
from quire.deploy.supervisor.restart_budget import RestartBudget
from quire.deploy.supervisor.scheduler_channel import SchedulerChannel
from quire.proto.messages.requests import Drain, Drained, GroupFailed, GroupLost, Refused, SchedulerMessage, Welcome
from quire.proto.process import exit_codes

Phase = Literal["starting", "serving", "draining", "over"]


class Supervisor:
    """`run` returns the exit code when nothing is left running."""

    def __init__(
        self, engine: EngineSpec, timers: Timers, say: Callable[[str], None], relay: Callable[[str], None],
        on_ready: Callable[[Welcome], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._timers = timers
        self._say = say
        self._on_ready = on_ready
        self._processes = ProcessSet(relay)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._channel: SchedulerChannel | None = None
        self._budgets: dict[str, RestartBudget] = {}
        self._due: dict[str, float] = {}
        self._phase: Phase = "starting"
        self._exit_code = exit_codes.SUCCESS
        self._epoch = 0
        self._num_signals = 0
        self._welcome: Welcome | None = None
        self._liveness: dict[str, Liveness] = {}
        """Of the scheduler and the frontends, by the process's name. A worker's silence is the scheduler's to judge."""
        self._num_heard = 0
        self._group_since = self._next_progress = 0.0
        self._deadline = 0.0
        """Of the phase: the start's or the drain's end."""

    def run(self) -> int:
        with self._signals():
            try:
                self._begin()
                while self._phase != "over":
                    self._turn()
            finally:
                self._processes.stop(self._timers.stop_grace, self._timers.stop_tier, lambda: self._num_signals > 1)
                if self._channel is not None:
                    self._channel.close()
                self._context.term()
        return self._exit_code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def count(_number: int, _frame: FrameType | None) -> None:
            self._num_signals += 1

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = [signal.signal(number, count) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _begin(self) -> None:
        now = time.monotonic()
        self._deadline = now + self._timers.startup
        self._next_progress = now + self._timers.progress
        self._start("scheduler")
        self._start("group")
        for index in range(self._engine.num_frontends):
            self._start(f"frontend {index}")

    def _start(self, unit: str) -> None:
        now = time.monotonic()
        if unit == "scheduler":
            self._processes.start("scheduler", 0, self._engine.scheduler_command())
            if self._channel is not None:
                self._channel.close()
            self._welcome = None
            self._liveness[unit] = Liveness(now)
            self._num_heard = 0
            self._channel = SchedulerChannel(self._context, self._engine.supervisor_address(), self._say)
            if self._phase == "draining":  # told to while no scheduler was there to hear it, or to the one before
                self._channel.send(Drain(max(0.0, self._deadline - self._timers.drain_margin - now)))
        elif unit == "group":
            self._epoch += 1
            self._group_since = now
            for rank in range(self._engine.world_size):
                self._processes.start("worker", rank, self._engine.worker_command(rank, self._epoch))
        else:
            index = int(unit.split()[1])
            self._processes.start("frontend", index, self._engine.frontend_command(index))
            self._liveness[unit] = Liveness(now)

    def _turn(self) -> None:
        channel = self._channel
        assert channel is not None
        due = time.monotonic() + self._timers.tick
        self._processes.wait([channel.socket], self._timers.tick)
        # by what the wait took longer we stood still, most likely with everybody else: nobody is late for it
        overslept = max(0.0, time.monotonic() - due)
        self._deadline, self._group_since = self._deadline + overslept, self._group_since + overslept
        channel.flush()
        for message in channel.receive():
            self._on_message(message)
        for process in self._processes.reap():
            self._on_death(process)
        now = time.monotonic()
        for unit in [unit for unit, due in self._due.items() if due <= now]:
            del self._due[unit]
            try:
                self._start(unit)
            except OSError as error:  # no process, descriptor or room on the disk: a death like any other
                self._lose(unit, f"{unit} cannot be started: {error}")
        self._look_at_clock(now)
        if self._num_signals:
            self._on_signal(now)

    def _on_message(self, message: SchedulerMessage) -> None:
        self._num_heard += 1
        if self._phase == "over":
            return
        match message:
            case Welcome():
                self._on_welcome(message)
            case Drained() if self._phase == "draining":
                self._say(f"drained; {message.num_ended} outputs were ended by the time-out")
                self._phase = "over"
            case Refused():
                self._fail(f"the scheduler refused the supervisor: {message.reason}")

    def _on_welcome(self, welcome: Welcome) -> None:
        was_ready = self._group_ready
        self._welcome = welcome
        if self._phase == "starting" and welcome.state == "failed":
            self._fail(welcome.detail, exit_codes.REFUSED)
            return
        broken = welcome.epoch == self._epoch and not welcome.group_lives and welcome.state != "failed"
        if broken and self._phase != "starting" and self._processes.with_role("worker"):
            self._lose_group(welcome.detail or "the scheduler gave the group up")
        if self._phase in ("serving", "draining") and self._group_ready and not was_ready:
            seconds = time.monotonic() - self._group_since
            self._say(f"ready again: epoch {self._epoch} after {seconds:.1f} s")
            for unit in {"scheduler", "group"} & self._budgets.keys():
                self._budgets[unit].pass_over(seconds)

    @property
    def _group_ready(self) -> bool:
        welcome = self._welcome
        return welcome is not None and welcome.epoch == self._epoch and welcome.group_lives

    def _on_death(self, process: SupervisedProcess) -> None:
        if self._phase == "over":
            return
        reason = process.exit_reason
        if self._phase == "starting":
            last_lines = "".join(f"\n  {line}" for line in process.last_lines)
            refused = process.exit_code == exit_codes.WORKER_REFUSED
            what = f"{process.name} refused this model or configuration" if refused else f"{reason} during the start"
            self._fail(f"{what}; its last lines:{last_lines}", exit_codes.REFUSED if refused else exit_codes.FAILED)
        elif process.role == "worker":
            self._lose_group(reason, may_restart=process.exit_code != exit_codes.WORKER_REFUSED)
        else:
            self._lose(process.name, reason)

    def _lose(self, unit: str, reason: str) -> None:
        if unit == "group":
            self._lose_group(reason)
        elif unit == "scheduler":
            self._lose_scheduler(reason)
        else:
            self._say(reason)
            self._restart(unit, reason)

    def _lose_group(self, reason: str, may_restart: bool = True) -> None:
        self._processes.kill("worker")
        self._say(f"worker group of epoch {self._epoch} lost: {reason}")
        assert self._channel is not None
        self._channel.send(GroupLost(self._epoch, reason))
        if may_restart:
            self._restart("group", reason)
        else:
            self._give_up(f"{reason}: it refused the model or its configuration")

    def _lose_scheduler(self, reason: str) -> None:
        self._processes.kill("worker")
        self._due.pop("group", None)
        self._say(reason)
        if self._exit_code != exit_codes.SUCCESS:  # it had to give the last word of an engine that has failed
            self._phase = "over"
        elif self._restart("scheduler", reason):
            # the group belongs to the scheduler's life and follows it without a budget of its own
            self._due["group"] = self._due["scheduler"]

    def _restart(self, unit: str, reason: str) -> bool:
        timers = self._timers
        fresh = RestartBudget(timers.max_restarts, timers.restart_window, timers.first_pause)
        budget, now = self._budgets.setdefault(unit, fresh), time.monotonic()
        pause = budget.spend(now)
        if pause is None:
            self._give_up(f"{unit}: more than {timers.max_restarts} deaths in {timers.restart_window:g} s; {reason}")
            return False
        self._say(f"restarting {unit}" + (f" in {pause:g} s" if pause else ""))
        self._due[unit] = now + pause
        return True

    def _give_up(self, reason: str) -> None:
        """Let clients hear why, then end."""
        if self._exit_code != exit_codes.SUCCESS:
            return
        self._exit_code = exit_codes.FAILED
        self._due.clear()
        if not self._processes.with_role("scheduler"):
            self._fail(reason)
            return
        self._say(f"giving up: {reason}")
        assert self._channel is not None
        self._channel.send(GroupFailed(reason))
        self._drain(self._timers.farewell, margin=0.0)

    def _drain(self, seconds: float, margin: float) -> None:
        assert self._channel is not None
        self._channel.send(Drain(seconds))
        self._phase = "draining"
        self._deadline = time.monotonic() + seconds + margin

    def _on_signal(self, now: float) -> None:
        if self._phase in ("starting", "over") or self._num_signals > 1:
            self._phase = "over"
        elif self._phase == "serving":
            self._say(f"draining for up to {self._timers.drain:g} s; a second signal stops at once")
            self._drain(self._timers.drain, self._timers.drain_margin)

    def _look_at_clock(self, now: float) -> None:
        timers = self._timers
        if self._phase == "starting":
            self._look_at_start(now)
        elif self._phase == "draining" and now >= self._deadline:
            self._say("the drain's time is over")
            self._phase = "over"
        if self._phase in ("serving", "draining"):
            if (
                self._processes.with_role("worker")
                and not self._group_ready
                and now - self._group_since > timers.startup
            ):
                self._lose_group(f"not ready within {timers.startup:g} s")
            self._feel_pulses(now)

    def _feel_pulses(self, now: float) -> None:
        """Kill who hangs; its death is seen as any other."""
        timers = self._timers
        for process in [*self._processes.with_role("scheduler"), *self._processes.with_role("frontend")]:
            liveness = self._liveness[process.name]
            is_scheduler = process.role == "scheduler"
            liveness.update(self._num_heard if is_scheduler else self._engine.frontend_heartbeat(process.index), now)
            if liveness.is_lost(timers.first_sign, timers.silence if is_scheduler else timers.frontend_silence):
                self._say(f"{process.name} gave no sign of life for {liveness.silence:.0f} s; killing it")
                process.kill()

    def _look_at_start(self, now: float) -> None:
        if self._welcome is None:
            late = ["scheduler"]
        elif not self._group_ready:
            late = [f"{self._engine.world_size} worker(s)"]
        else:  # they take requests once they have heard of the group
            ready = self._engine.frontend_ready
            late = [f"frontend {index}" for index in range(self._engine.num_frontends) if not ready(index)]
        if not late:
            self._phase = "serving"
            assert self._welcome is not None
            self._on_ready(self._welcome)
        elif now >= self._deadline:
            self._fail(f"not ready within {self._timers.startup:g} s: {', '.join(late)}")
        elif now >= self._next_progress:
            self._next_progress = now + self._timers.progress
            self._say(f"waiting for {', '.join(late)}")

    def _fail(self, reason: str, exit_code: int = exit_codes.FAILED) -> None:
        self._say(f"error: {reason}")
        self._exit_code = exit_code
        self._phase = "over"
