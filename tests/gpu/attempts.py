"""Parts as processes: each with a deadline, so that one that fails, hangs or dies costs only itself.

A case that hangs is killed with its process; a part that has lost its device ends. Either starts again behind the case.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import chip
from inside import LOST
from report import Report

HERE = Path(__file__).parent
POLL_SECONDS = 0.05
LAST_SECONDS = 3.0
"""Before its deadline a part begins no further case, and says what it has not reached."""
REAP_SECONDS = 10.0
"""A process that hangs in the driver may not end at once even when killed."""


@dataclass(frozen=True)
class Part:
    name: str
    seconds: float
    """Kept for it: earlier parts do not use them up. It may take more while later ones are not cut short."""
    case_seconds: float = 60.0
    """After which a case has hung."""
    most_seconds: float = float("inf")
    start_seconds: float = 90.0
    """Before its first case: imports."""


Stage = Sequence[Part]
"""Parts that run side by side."""


@dataclass(frozen=True)
class Run:
    """What all parts share. `module` says what they do: see `inside.py`."""

    module: str
    device: str
    lines: Path
    log: Path
    until: float
    """The absolute deadline of all, of the clock `time.monotonic`."""
    seed: int = 0

    def stages(self, stages: Sequence[Stage], after: Callable[[], object] = lambda: None) -> None:
        """One behind the other; `after` each of them something else."""
        kept = [max(part.seconds for part in stage) for stage in stages]
        share = min(1.0, (self.until - time.monotonic()) / max(1.0, sum(kept)))  # of a short run each has less
        for index, stage in enumerate(stages):
            self.stage(stage, self.until - share * sum(kept[index + 1 :]))
            after()

    def stage(self, stage: Stage, until: float) -> None:
        with tempfile.TemporaryDirectory(prefix="quire-parts-") as name:
            threads = max(1, len(os.sched_getaffinity(0)) // len(stage))
            running = [Attempt(self, part, until, Path(name), threads) for part in stage]
            try:
                while running := [attempt for attempt in running if not attempt.ended()]:
                    time.sleep(POLL_SECONDS)
            finally:
                for attempt in running:
                    attempt.kill()


class Attempt:
    """One part, in as many processes as it needs."""

    def __init__(self, run: Run, part: Part, until: float, folder: Path, threads: int) -> None:
        """`threads`: of the host that its processes compute with, so that parts side by side share the cores."""
        self._run = run
        self._part = part
        self._place = folder / f"{part.name}.place"
        self._environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self._begun = time.monotonic()
        self._until = min(until, self._begun + chip.patience() * part.most_seconds)
        self._start(0)

    def _start(self, behind: int) -> None:
        self._place.unlink(missing_ok=True)
        self._since = time.monotonic()
        options = {
            "module": self._run.module, "part": self._part.name, "device": self._run.device, "behind": behind,
            "lines": str(self._run.lines), "place": str(self._place), "until": self._until - LAST_SECONDS,
            "parent": os.getpid(), "seed": self._run.seed,
        }  # fmt: skip
        command = [sys.executable, str(HERE / "inside.py"), json.dumps(options)]
        with self._run.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, process_group=0, env=self._environment
            )

    def ended(self) -> bool:
        """Look after it; whether the part is over."""
        status = self._process.poll()
        if status == 0:
            print(f"[{self._part.name}: {time.monotonic() - self._begun:.1f} s]", flush=True)
            return True
        number, case, since = self._where()
        if status is None:
            now = time.monotonic()
            limit = self._part.start_seconds if number < 0 else self._part.case_seconds
            if now <= self._until and now - since <= chip.patience() * limit:
                return False
            self.kill()
            why = f"hung: killed after {now - since:.1f} s" if now <= self._until else "out of time, and what is behind"
        elif status == LOST:
            return self._again(number)
        else:
            why = f"the process ended with status {status}; see {self._run.log.name}"
        report = Report(self._part.name, self._run.lines)
        report.line(number, case, time.monotonic() - since, TimeoutError(why) if status is None else RuntimeError(why))
        return self._again(number)

    def _again(self, number: int) -> bool:
        """Start behind case `number`, unless nothing was begun or the time is up; whether the part is over."""
        over = number < 0 or time.monotonic() > self._until - LAST_SECONDS
        word = "over" if over else "starts again"
        print(f"[{self._part.name}: {time.monotonic() - self._begun:.1f} s, {word} behind case {number}]", flush=True)
        if not over:
            self._start(number + 1)
        return over

    def _where(self) -> tuple[int, str, float]:
        """Number, name and beginning of the present case; -1 before the first."""
        try:
            place = json.loads(self._place.read_text())
        except FileNotFoundError:
            return -1, "start and imports", self._since
        return place["number"], place["case"], place["since"]

    def kill(self) -> None:
        """With its children. The wait is bounded: who hangs in a driver is left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_SECONDS)
