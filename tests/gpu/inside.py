"""The process of one part: its cases in order, each one's line at once.

`python inside.py OPTIONS` (one JSON argument): `module` names the file whose `cases(part, report, given)`
yields the part's cases, always the same ones in the same order.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import chip
from report import Case, Given, Lost, Report

LOST = 75
"""Exit status: start again, behind the case that failed."""
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    options = json.loads(argv[1])
    die_with(options["parent"])
    warnings.filterwarnings("ignore", message=".*deterministic.*")
    stands_in = options["device"] == chip.STAND_IN
    report = Report(options["part"], Path(options["lines"]), not stands_in)
    with tempfile.TemporaryDirectory(prefix="quire-gpu-") as name:
        device = "cuda" if stands_in else options["device"]
        given = Given(device, Path(name), options["seed"], stands_in)
        cases = listed(options["module"], options["part"], report, given)
        return run(report, cases, Path(options["place"]), options["behind"], options["until"], options["seed"])


def listed(module: str, part: str, report: Report, given: Given) -> Iterator[Case]:
    """Imported with the first case, so that a part that cannot be imported says so in a line."""
    yield from importlib.import_module(module).cases(part, report, given)


def run(report: Report, cases: Iterator[Case], place: Path, behind: int, until: float, seed: int = 0) -> int:
    """The cases from number `behind` on, as long as there is time; the exit status."""
    missed: list[str] = []
    number = -1
    try:
        for number, case in enumerate(cases):
            if number < behind:
                continue
            if missed or time.monotonic() > until:
                missed.append(case.name)
                continue
            mark(place, number, case.name)
            chip.seed(seed + number)
            failure = report.case(number, case, chip.settle)
            if failure is not None and (isinstance(failure, Lost) or chip.is_lost(failure)):
                return LOST
    except Exception as error:  # of the list itself: a case has caught its own
        report.line(number + 1, "the list of cases, and what is behind", 0.0, error)
    if missed:
        late = TimeoutError(f"{len(missed)} cases were not reached, from {missed[0]!r} on")
        report.line(number, "out of time", 0.0, late)
    return 0


def mark(place: Path, number: int, name: str) -> None:
    """Say which case runs and since when, for who must judge a process that says no more."""
    text = json.dumps({"number": number, "case": name, "since": time.monotonic()})
    fresh = place.with_suffix(".next")
    fresh.write_text(text)
    fresh.rename(place)


def die_with(parent: int) -> None:
    """Be killed when the parent ends: nothing may go on using the device after the script."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
