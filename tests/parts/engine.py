"""Engines of tests: `quire serve` as a user calls it, its processes found through /proc, its API by the client."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from parts import forked
from parts.clock import GUARD, eventually

from quire.proto.api import EngineLoad, RequestError
from quire.proto.client import Client

# `quire serve`, but a test run that is killed leaves no engine behind
TIED_MAIN = """
import sys
from quire.deploy.__main__ import main
from quire.proto.process.parent_death import tie_to_parent
tie_to_parent()
sys.exit(main())
"""
# its workers are forked from it: no machine is so slow that a scheduler does not welcome one in this time
PATIENT = f"import quire.worker.loop; quire.worker.loop.HELLO_SECONDS = {GUARD}\n"
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))\n"
LIBRARY = ("transformers.models.auto.modeling_auto",)
"""Imports of a worker that runs modules of transformers."""


class Engine:
    """One running `quire serve`. `flags` are given to the command line as they are."""

    def __init__(self, *flags: str, num_descriptors: int = 0, fresh: bool = False, imports: Sequence[str] = ()) -> None:
        """`num_descriptors`: so many may each process have open; 0: as many as this one. `fresh`: its processes are
        started as a user starts them, not forked from one that has imported, with `imports`, what they need.
        """
        before = LIMITED.format(num_descriptors) if num_descriptors else ""
        before += "" if fresh else PATIENT
        # one thread per worker: tiny layers gain nothing from more; float32 where no dtype is asked for: texts of two
        # runs are compared, and with eight bits of mantissa two tokens are often equally likely
        arguments = ["serve", "--dtype=float32", *flags, "--grpc-port=0", "--http-port=0", "--num-threads=1"]
        command = [sys.executable, "-P", "-c", before + TIED_MAIN, *arguments]
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        self.process = subprocess.Popen(command, **how) if fresh else forked.Popen(command, imports=imports, **how)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self.wait_for_line(r"ready: gRPC on ([^\s,]+), HTTP on https?://(\S+)")
        self.target = ready.group(1)
        self.http = ready.group(2)
        """host:port of the HTTP API."""
        self.client = Client(self.target)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, pattern: str, after: int = 0) -> re.Match[str]:
        """The first match among the lines printed so far, from line `after` on, or to come."""

        def find() -> re.Match[str] | None:
            return next((m for line in self.lines[after:] if (m := re.search(pattern, line))), None)

        def look() -> bool:
            return find() is not None or self.process.poll() is not None

        eventually(look, lambda: f"no line {pattern!r} in:\n{self.log}")
        if (found := find()) is None:
            self._reader.join(GUARD)  # what it said last
            found = find()
        assert found is not None, f"serve ended with {self.process.returncode} before {pattern!r}:\n{self.log}"
        return found

    def pids(self, role: str) -> list[int]:
        """Processes of a role, ranks and indexes in order of their start."""
        return sorted(pid for pid, command in descendants(self.process.pid) if f"quire.{role}" in command)

    def all_pids(self) -> list[int]:
        return [self.process.pid, *(pid for pid, _ in descendants(self.process.pid))]

    def load(self) -> EngineLoad:
        """Its load; asked for again where a frontend misses the scheduler, which stands still on a busy machine."""
        found: list[EngineLoad] = []

        def is_told() -> bool:
            try:
                found.append(self.client.load())
            except RequestError as error:
                if error.reason != "SCHEDULER_LOST":
                    raise
            return bool(found)

        eventually(is_told)
        return found[0]

    def idle(self) -> bool:
        """Nothing lives, and no block is held."""
        load = self.load()
        return load.num_running == load.num_waiting == load.fenced_blocks == 0 and load.free_blocks == load.num_blocks

    def stop(self, drains: bool = False) -> int:
        """SIGTERM; returns the exit code. Once more at once, unless it `drains`: it does not wait for idle clients."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            if not drains:
                eventually(lambda: "draining" in self.log or self.process.poll() is not None)
                self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(GUARD)
        self.client.close()
        return code


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of all processes below `pid`."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        children.setdefault(int(fields[1]), []).append(int(path.name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            try:
                command = (Path("/proc") / str(child) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found.append((child, command))
            queue.append(child)
    return found


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


STARTED: list[Engine] = []
"""Engines whose `started` has not ended."""


@contextlib.contextmanager
def started() -> Iterator[Callable[..., Engine]]:
    """Starts engines; whatever of them is left at the end is killed, and that is a failure."""
    engines: list[Engine] = []

    def start(*flags: str, **how: object) -> Engine:
        engines.append(Engine(*flags, **how))
        STARTED.append(engines[-1])
        return engines[-1]

    yield start
    STARTED[:] = [one for one in STARTED if one not in engines]
    left = []
    for engine in engines:
        if engine.process.poll() is None:
            pids = engine.all_pids()
            engine.stop()
            left += [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


class Shared(contextlib.ExitStack):
    """Engines for all modules that only ask them, by their flags, until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._engines: dict[tuple[str, ...], tuple[Engine, list[int]]] = {}

    def __call__(self, *flags: str) -> Engine:
        if not self._engines:
            self._start = self.enter_context(started())
        if flags not in self._engines:
            engine = self._start(*flags)
            self._engines[flags] = engine, self._processes(engine)
        engine, pids = self._engines[flags]
        assert self._processes(engine) == pids, f"a module before this one killed what it shares:\n{engine.log}"
        return engine

    def _processes(self, engine: Engine) -> list[int]:
        """Not the children of frontends, which come and go."""
        ours = re.compile(r"-m quire\.(scheduler|worker|frontend) ")
        return sorted(pid for pid, command in descendants(engine.process.pid) if ours.search(command))

    def close(self) -> None:
        for flags in self._engines:
            self(*flags)
        self._engines.clear()
        super().close()
