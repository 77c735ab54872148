"""The real supervisor over stand-in processes: `supervise.py DIRECTORY...`, settings in DIRECTORY/settings.json.

Several directories are several engines in one loop: a stand-in for several models in one deployment, which brings the
command line for it.
"""

import ctypes
import errno
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import zmq

sys.path.insert(0, str(Path(__file__).parents[2]))

from parts import becoming
from parts.clock import GUARD

from quire.deploy.supervisor import supervisor
from quire.deploy.supervisor.engine_spec import Timers
from quire.deploy.supervisor.signals import StopSignals
from quire.deploy.supervisor.supervised_engine import SupervisedEngine
from quire.proto.messages.requests import Welcome
from quire.proto.process import log_stream
from quire.proto.transport.channel import ipc_address

PR_SET_CHILD_SUBREAPER = 36
HERE = Path(__file__).parent
TESTS = HERE.parents[1]
PATIENT = ("startup", "stop_grace", "stop_tier", "silence", "frontend_silence", "first_sign")
PATIENCE = dict.fromkeys(PATIENT, 2 * GUARD)
"""Timers of a test that is not about them: no machine is so slow that one rings, and who waits for one fails."""
becoming.FORKED = re.compile(f"{becoming.FORKED.pattern}|scheduler|worker|frontend")
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(TESTS)])


class Poller(zmq.Poller):
    """The supervisor's: while it waits, as many seconds pass as a test writes into the file `asleep`."""

    skipped = 0.0

    def poll(self, timeout: float | None = None) -> list[tuple[object, int]]:
        found = super().poll(timeout)
        for path in (Path(directory) / "asleep" for directory in sys.argv[1:]):
            if path.exists():
                Poller.skipped += float(path.read_text())
                path.unlink()
        return found


def later(monotonic=time.monotonic) -> float:
    return monotonic() + Poller.skipped


class StandInEngine:
    def __init__(self, directory: Path, settings: dict[str, int]) -> None:
        self.directory = directory
        self.world_size = settings.get("world_size", 2)
        self.num_frontends = settings.get("num_frontends", 1)

    def _command(self, kind: str, *arguments: object) -> list[str]:
        return [sys.executable, "-P", "-m", kind, str(self.directory), *map(str, arguments)]

    def _need_room(self) -> None:
        if (self.directory / "full").exists():
            note(self.directory, "no_room")
            raise OSError(errno.ENOSPC, "No space left on device")

    def scheduler_command(self) -> list[str]:
        self._need_room()
        (self.directory / "frontends.sock").unlink(missing_ok=True)
        (self.directory / "workers.sock").unlink(missing_ok=True)
        return self._command("scheduler", self.world_size)

    def worker_command(self, rank: int, epoch: int) -> list[str]:
        self._need_room()
        return self._command("worker", rank, epoch, self.world_size)

    def frontend_command(self, index: int) -> list[str]:
        self._need_room()
        for name in (f"frontend-{index}.ready", f"hung-{index}"):
            (self.directory / name).unlink(missing_ok=True)
        return self._command("frontend", index)

    def frontend_ready(self, index: int) -> bool:
        return (self.directory / f"frontend-{index}.ready").exists()

    def frontend_heartbeat(self, index: int) -> int:
        """It goes on, however slow the machine is, until a test says that the frontend is hung."""
        is_hung = (self.directory / f"hung-{index}").exists()
        return 0 if not self.frontend_ready(index) else 1 if is_hung else time.monotonic_ns()

    def supervisor_address(self) -> str:
        return ipc_address(str(self.directory), "frontends")


def note(directory: Path, line: str) -> None:
    with (directory / "journal").open("a") as journal:
        journal.write(f"{line}\n")


def engine_of(directory: Path, stream: log_stream.LogStream) -> SupervisedEngine:
    settings = json.loads((directory / "settings.json").read_text())
    timers = Timers(**(PATIENCE | settings.get("timers", {})))

    def log(line: str) -> None:
        stream.write_line(f"{settings.get('name', '')}{line}")

    def on_ready(welcome: Welcome) -> None:
        note(directory, f"ready supervisor {welcome.epoch}")

    return SupervisedEngine(StandInEngine(directory, settings), timers, log, log, on_ready)


def become_reaper(directory: Path) -> None:
    """Orphans below this process become its children, as in a container those of all processes become process 1's."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not (child := os.fork()):
        note(directory, f"orphan {child} {os.fork() or os._exit(0)}")
        os._exit(0)
    os.waitpid(child, 0)


def main() -> int:
    supervisor.zmq, time.monotonic = SimpleNamespace(Poller=Poller), later
    directory = Path(sys.argv[1])
    settings = json.loads((directory / "settings.json").read_text())
    for name in settings.get("ignored", []):
        signal.signal(signal.Signals[name], signal.SIG_IGN)  # as this process finds it behind `nohup`
    if settings.get("reaps"):
        become_reaper(directory)
    log_stream.MOST_BYTES = settings.get("most_log_bytes", log_stream.MOST_BYTES)
    with log_stream.logged() as (stream, _):
        engines = [engine_of(Path(directory), stream) for directory in sys.argv[1:]]
        return supervisor.Supervisor(engines, StopSignals()).run()


if __name__ == "__main__":
    sys.exit(main())
