"""One engine in the hands of the supervisor: its keeper decides, this does it to processes, sockets and files."""

import time
from collections.abc import Callable, Sequence

import zmq

from quire.deploy.supervisor.actions import (
    Action,
    AnnounceReady,
    Kill,
    KillHung,
    Log,
    Send,
    StartFrontend,
    StartGroup,
    StartScheduler,
    Terminate,
)
from quire.deploy.supervisor.engine_spec import EngineSpec, Timers
from quire.deploy.supervisor.keeper import Death, EngineKeeper, FrontendSign
from quire.deploy.supervisor.process_set import ProcessSet
from quire.deploy.supervisor.scheduler_channel import SchedulerChannel
from quire.deploy.supervisor.shutdown import STOP_ORDER
from quire.proto.messages.requests import Welcome


class SupervisedEngine:
    """Processes of one engine, from `begin` until `is_over`. Between them call `turn` often."""

    def __init__(
        self,
        spec: EngineSpec,
        timers: Timers,
        log: Callable[[str], None],
        relay: Callable[[str], None],
        on_ready: Callable[[Welcome], None],
    ) -> None:
        self.tick_seconds = timers.tick
        self._spec = spec
        self._log = log
        self._on_ready = on_ready
        self._keeper = EngineKeeper(spec.world_size, spec.num_frontends, timers)
        self._processes = ProcessSet(relay)
        self._channel: SchedulerChannel | None = None
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    @property
    def is_over(self) -> bool:
        """Nothing of it is left running."""
        return self._keeper.phase == "over"

    @property
    def exit_code(self) -> int:
        return self._keeper.exit_code

    @property
    def failure(self) -> str:
        """Reason of an end that nobody asked for; empty otherwise."""
        return self._keeper.failure

    def begin(self) -> None:
        self._keeper.begin(time.monotonic())
        self._start_due()

    @property
    def pids(self) -> set[int]:
        """Processes of it that nobody has reaped."""
        return self._processes.pids

    def register(self, poller: zmq.Poller) -> None:
        """Everything whose readiness makes a `turn` worth while."""
        for descriptor in self._processes.descriptors():
            poller.register(descriptor, zmq.POLLIN)
        if self._channel is not None:
            poller.register(self._channel.socket, zmq.POLLIN)

    def turn(self, overslept: float, num_signals: int) -> None:
        """Take what has happened, and do what follows. `overslept`: seconds by which the wait before was too long."""
        keeper = self._keeper
        keeper.on_overslept(overslept)
        self._processes.relay_logs()
        if self._channel is not None:
            self._channel.flush()
            for message in self._channel.receive():
                self._do(keeper.on_message(message, time.monotonic()))
        for process in self._processes.reap():
            death = Death(
                process.role,
                process.index,
                process.name,
                process.exit_reason,
                process.exit_code,
                tuple(process.last_lines),
            )
            self._do(keeper.on_death(death, time.monotonic()))
        self._start_due()
        now = time.monotonic()
        self._do(keeper.on_signal(num_signals, now))
        self._do(keeper.on_tick(self._frontend_signs(), now))

    def stop(self) -> None:
        """End it in order, over the next turns."""
        self._do(self._keeper.stop(time.monotonic()))

    def close(self) -> None:
        """Kill what is still there, and let go of the channel."""
        for role in STOP_ORDER:
            self._processes.kill(role)
        if self._channel is not None:
            self._channel.close()
        self._zmq.term()

    def _frontend_signs(self) -> list[FrontendSign]:
        spec = self._spec
        return [
            FrontendSign(spec.frontend_ready(index), spec.frontend_heartbeat(index))
            for index in range(spec.num_frontends)
        ]

    def _start_due(self) -> None:
        for unit in self._keeper.units_due(time.monotonic()):
            try:
                self._do(self._keeper.start(unit, time.monotonic()))
            except OSError as error:
                self._do(self._keeper.on_not_started(unit, str(error), time.monotonic()))

    def _do(self, actions: Sequence[Action]) -> None:
        """Raises `OSError` where there is no process, descriptor or room on the disk for a start."""
        spec, processes = self._spec, self._processes
        for action in actions:
            match action:
                case StartScheduler():
                    self._start_scheduler()
                case StartGroup(epoch):
                    for rank in range(spec.world_size):
                        processes.start("worker", rank, spec.worker_command(rank, epoch))
                case StartFrontend(index):
                    processes.start("frontend", index, spec.frontend_command(index))
                case Terminate(role):
                    processes.terminate(role)
                case Kill(role):
                    processes.kill(role)
                case KillHung(role, index):
                    processes.kill_one(role, index)
                case Send(message):
                    assert self._channel is not None
                    self._channel.send(message)
                case Log(line):
                    self._log(line)
                case AnnounceReady(welcome):
                    self._on_ready(welcome)

    def _start_scheduler(self) -> None:
        self._processes.start("scheduler", 0, self._spec.scheduler_command())
        if self._channel is not None:
            self._channel.close()
        self._channel = SchedulerChannel(self._zmq, self._spec.supervisor_address(), self._log)
