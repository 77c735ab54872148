"""A whole engine of stand-ins: real processes, real sockets and the real supervisor, without model and torch."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STAND_INS = Path(__file__).parent / "stand_ins"
DEADLINE_SECONDS = 30.0


class Deployment:
    """A supervisor process over stand-in children; every process leaves its pid and its doings in `journal`."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.journal_path = directory / "journal"
        self.journal_path.touch()
        (directory / "settings.json").write_text(json.dumps(settings))
        self.process = subprocess.Popen(
            [sys.executable, str(STAND_INS / "supervise.py"), str(directory)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._output = ""

    @property
    def journal(self) -> list[list[str]]:
        """Lines `what who pid ...`, in the order of time."""
        return [line.split() for line in self.journal_path.read_text().splitlines()]

    def events(self, *what: str) -> list[list[str]]:
        return [entry for entry in self.journal if entry[0] in what]

    def pid_of(self, who: str) -> int:
        """Of the newest process of that name."""
        return int([entry for entry in self.events("start") if entry[1] == who][-1][2])

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s: {what}"
            time.sleep(0.02)

    def wait_for(self, what: str, count: int = 1) -> None:
        self.until(lambda: len(self.events(what)) >= count, f"{count} x {what}; journal {self.journal}")

    def kill(self, who: str) -> None:
        os.kill(self.pid_of(who), signal.SIGKILL)

    def finish(self) -> tuple[int, str]:
        """Exit code and everything printed."""
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, output

    def living(self) -> list[str]:
        """Children that are still there."""
        return [entry[1] for entry in self.events("start") if is_alive(int(entry[2]))]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    started: list[Deployment] = []

    def start(**settings: object) -> Deployment:
        directory = tmp_path / f"d{len(started)}"
        directory.mkdir(mode=0o700)
        started.append(Deployment(directory, **settings))
        return started[-1]

    yield start
    for deployment in started:
        if deployment.process.poll() is None:
            deployment.process.kill()
            deployment.process.communicate()
