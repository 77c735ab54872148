"""The processes of one bench: started without a supervisor, because a death must end the bench, not be repaired."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec
import zmq

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.supervisor.process import ProcessRole, SupervisedProcess
from quire.deploy.supervisor.process_set import ProcessSet
from quire.deploy.supervisor.rundir import RunDir
from quire.deploy.supervisor.shutdown import STOP_ORDER, Shutdown

T = TypeVar("T")

POLL_SECONDS = 0.05
STOP_SECONDS = 20.0


class BenchProcesses:
    """A context manager: a private run directory and the processes in it. Leaving it ends them all.

    Use it on the main thread: the kernel ties the processes to the thread that started them.
    """

    def __init__(self) -> None:
        self.run_dir = RunDir("")
        self._processes = ProcessSet(lambda line: None)
        self._started: list[SupervisedProcess] = []

    def __enter__(self) -> "BenchProcesses":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for role in STOP_ORDER:
            self._processes.kill(role)
        self.run_dir.close()

    def start(self, role: ProcessRole, index: int, command: list[str]) -> SupervisedProcess:
        process = self._processes.start(role, index, command)
        self._started.append(process)
        return process

    def start_module(self, role: ProcessRole, module: str, config: dict[str, object]) -> SupervisedProcess:
        """Write `config` into the run directory and run `python -m module CONFIG.json`."""
        path = self.run_dir.path / f"{role}-bench.json"
        path.write_bytes(msgspec.json.encode(config))
        return self.start(role, 0, [sys.executable, "-P", "-m", module, str(path)])

    def wait_for(self, what: str, probe: Callable[[], T | None], timeout_seconds: float) -> T:
        """The first answer of `probe` that is not None. Raises `BenchError` on a death or when the time is over."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self.watch(0.0)
            answer = probe()
            if answer is not None:
                return answer
            if time.monotonic() > deadline:
                words = "\n".join(
                    f"[{process.name}] {line}" for process in self._started for line in process.last_lines
                )
                raise BenchError(f"{what}: not within {timeout_seconds:g} s\n{words}")
            self.watch(POLL_SECONDS)

    def watch(self, timeout_seconds: float) -> None:
        """Take the processes's log lines for at most so long. Raises `BenchError` when one has died."""
        self._wait(timeout_seconds)
        for process in self._processes.reap():
            raise BenchError(f"{process.exit_reason}; its last lines:\n" + "\n".join(process.last_lines))

    def _wait(self, timeout_seconds: float) -> None:
        """Wait for a log line, a death or the timeout; then relay the lines."""
        poller = zmq.Poller()
        for descriptor in self._processes.descriptors():
            poller.register(descriptor, zmq.POLLIN)
        poller.poll(int(timeout_seconds * 1000))
        self._processes.relay_logs()

    def stop(self) -> None:
        """SIGTERM to all in order: frontends, scheduler, workers. Raises `BenchError` when one did not end well."""
        processes, shutdown = self._processes, Shutdown(time.monotonic(), STOP_SECONDS, STOP_SECONDS)
        while not shutdown.is_over(processes.roles, time.monotonic(), hurry=False):
            for role in shutdown.roles_due(processes.roles, time.monotonic(), hurry=False):
                processes.terminate(role)
            self._wait(POLL_SECONDS)
            for _ in processes.reap():
                continue
        for role in STOP_ORDER:
            processes.kill(role)
        for process in self._started:
            # a process that was about to end by itself may die of the signal while the interpreter shuts down
            if process.exit_code not in (0, -signal.SIGTERM):
                raise BenchError(f"{process.exit_reason} when told to stop:\n" + "\n".join(process.last_lines))


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_resident_bytes(pid: int) -> int:
    """The most memory a process ever had resident (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"/proc/{pid}/status has no VmHWM line")
