"""Measures the tiles of every shape on this machine's GPU and writes its table.

`python -m quire.kernels.gpu.tuning.tune '{"operations": ["linear"], "out": "FOLDER", "seconds": 300}'` prints one JSON
object: the measuring half of `quire bench tune`. No operations: all that have trials. No folder: the one the kernels
read.
"""

import fcntl
import json
import math
import os
import queue
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch

from quire.kernels.chips import has_cuda
from quire.kernels.gpu.tile_table import FOLDER, TileTableError, read_table, slug
from quire.kernels.gpu.tuning.catalog import all_trials
from quire.kernels.gpu.tuning.trial import Trial
from quire.kernels.gpu.tuning.trial_child import TrialChild, TrialFailed
from quire.kernels.gpu.tuning.trial_process import ALL_TRIALS, die_with_parent

MOST_PROBES = 16
"""Each holds a context of the device and a trial's arguments."""
COMPILE_SECONDS = 120.0
"""Limit for one candidate, to compile and to launch it once."""
TIME_SECONDS = 30.0


class TuneError(Exception):
    """Nothing can be measured: what was asked for, or this machine, is wrong."""


def select(trials: Iterable[Trial], operations: Sequence[str]) -> list[Trial]:
    """The trials of these operations, of all when there are none. Raises TuneError for one without trials."""
    found = list(trials)
    known = {trial.operation for trial in found}
    if unknown := set(operations) - known:
        raise TuneError(f"operations: {sorted(unknown)} have no trials; known: {sorted(known)}")
    return [trial for trial in found if not operations or trial.operation in operations]


class Tuner:
    """Processes that try candidates: one for each core launches them, which compiles them; one alone times them."""

    def __init__(self, device: str, source: str = ALL_TRIALS, num_probes: int | None = None) -> None:
        num_probes = num_probes or min(MOST_PROBES, os.cpu_count() or 1)
        self._probes = [TrialChild(device, source) for _ in range(num_probes)]
        self._timer = TrialChild(device, source)
        self._threads = ThreadPoolExecutor(num_probes)
        """They live as long as this does: with each the process ends that it has started."""
        self.failed: list[str] = []
        """Candidates that cannot be used, and why."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._probes:  # one may be waited for: this may be an interrupt
            child.interrupt()
        self._threads.shutdown()
        for child in (*self._probes, self._timer):
            child.close()

    def fastest(self, trial: Trial) -> dict[str, object] | None:
        """The fastest candidate of a trial, beside the first one, which is the default; None when none can be used."""
        idle = queue.SimpleQueue[TrialChild]()
        for child in self._probes:
            idle.put(child)

        def launches(number: int) -> bool:
            child = idle.get()
            try:
                return self._ask(child, trial, number, timed=False, seconds=COMPILE_SECONDS) is not None
            finally:
                idle.put(child)

        usable = list(self._threads.map(launches, range(len(trial.candidates))))
        times = [
            self._ask(self._timer, trial, number, timed=True, seconds=TIME_SECONDS) if fine else None
            for number, fine in enumerate(usable)
        ]
        measured = [(us, number) for number, us in enumerate(times) if us is not None]
        if not measured:
            return None
        us, number = min(measured)
        gb_s = trial.floor_bytes / us / 1e3
        return {"tiles": dict(trial.candidates[number]), "us": us, "default_us": times[0], "gb_s": gb_s}

    def _ask(self, child: TrialChild, trial: Trial, number: int, timed: bool, seconds: float) -> float | None:
        try:
            return child.ask(trial.operation, trial.shape, number, timed, seconds)
        except TrialFailed as error:
            tiles = " ".join(f"{name}={size}" for name, size in trial.candidates[number].items())
            self.failed.append(f"{trial.operation}, {trial.shape}, {tiles}: {error}")
            return None


def write_table(path: Path, chosen: dict[str, dict[str, dict[str, object]]]) -> None:
    """Put the chosen tiles into the table at `path`; what it says of other shapes stays, whoever writes beside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        table: dict[str, dict[str, object]] = {}
        if path.exists():
            table = {operation: dict(shapes) for operation, shapes in read_table(path).items()}
        for operation, shapes in chosen.items():
            table.setdefault(operation, {}).update({shape: choice["tiles"] for shape, choice in shapes.items()})
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        partial.replace(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Inside, no other process is; the lock is the folder's own, because the file is replaced."""
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def measure(
    tuner: Tuner, trials: Iterable[Trial], path: Path, seconds: float
) -> dict[str, dict[str, dict[str, object]]]:
    """The choices for each operation and shape until `seconds` were over; in the table as soon as they are known."""
    chosen: dict[str, dict[str, dict[str, object]]] = {}
    until = time.monotonic() + seconds
    for trial in trials:
        if time.monotonic() > until:
            break
        choice = tuner.fastest(trial)
        if choice is not None:
            chosen.setdefault(trial.operation, {})[trial.shape] = choice
            write_table(path, {trial.operation: {trial.shape: choice}})
    return chosen


def main(argument: str) -> dict[str, object]:
    """Measure, write the table, and return what was chosen: {device, file, chosen, failed}.

    Raises TuneError for unknown options or operations and without a GPU.
    """
    options = json.loads(argument)
    if unknown := set(options) - {"operations", "out", "seconds"}:
        raise TuneError(f"options: {sorted(unknown)} are unknown; known: operations, out, seconds")
    seconds = options.get("seconds", math.inf)
    if "seconds" in options and not (type(seconds) in (int, float) and 0 < seconds < math.inf):
        raise TuneError(f"seconds: {seconds!r}: expected a number above zero; without it all is measured")
    if not has_cuda():
        raise TuneError("tiles are measured on the GPU they are for: this machine has no CUDA device")
    name = torch.cuda.get_device_name()
    path = Path(options.get("out") or FOLDER) / f"{slug(name)}.json"
    trials = select(all_trials(), options.get("operations", []))
    with Tuner(f"cuda:{torch.cuda.current_device()}") as tuner:
        chosen = measure(tuner, trials, path, seconds)
    if tuner.failed and not chosen:
        raise TuneError(f"no candidate of any shape can be launched on this device; the first was {tuner.failed[0]}")
    return {"device": name, "file": str(path), "chosen": chosen, "failed": tuner.failed}


if __name__ == "__main__":
    die_with_parent()
    try:
        print(json.dumps(main(sys.argv[1] if len(sys.argv) > 1 else "{}")))
    except (TuneError, TileTableError) as error:
        sys.exit(str(error))
