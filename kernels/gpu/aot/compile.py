"""Compiles every kernel as it ships for GPUs that are not here, and checks what the compiler made of it.

`python -m quire.kernels.gpu.aot.compile [--capability 80 90] [--kernels linear.norm] [--jobs N] [--json]` needs neither
GPU nor driver. It prints one row for each `Build` and ends with status 1 when any spills, has a stack frame, takes more
shared memory than the chip has, lacks an instruction it is meant to use, or does not compile.

The compiler takes minutes and makes the same of the same source: with `--recorded FILE`, what it made of a build that
has not changed since is read there (see `quire.kernels.gpu.aot.recorded`), but for `--again N` of them.
"""

import argparse
import functools
import importlib
import json
import multiprocessing
import os
import pkgutil
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

import quire.kernels.gpu.aot.builds
from quire.kernels.chips import COMPILED
from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.aot.recorded import Key, Recorded, key_of, source_of
from quire.kernels.gpu.aot.resources import SHARED_LIMITS, Resources, faults, resources

PACKAGE = "quire.kernels.gpu.aot.builds."
_HEADINGS = (
    "kernel",
    "build",
    "sm",
    "registers",
    "spills",
    "stack",
    "shared",
    "matrix, copy",
    "specialized",
    "verdict",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One build for one chip, compiled; `used` is None when it did not compile."""

    kernel: str
    """The module."""
    function: str
    name: str
    capability: int
    used: Resources | None
    faults: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        """The row as it is printed."""
        verdict = "; ".join(self.faults) or "ok"
        if self.used is None:
            return (self.kernel, self.name, str(self.capability), "", "", "", "", "", "", verdict)
        numbers = (self.capability, self.used.registers, self.used.spills, self.used.stack, self.used.shared)
        specialized = "yes" if "warp_specialize" in self.used.features else ""
        return (self.kernel, self.name, *map(str, numbers), ", ".join(self.used.instructions), specialized, verdict)

    def document(self) -> dict[str, object]:
        """The row as one JSON object."""
        used = {} if self.used is None else {**asdict(self.used), "features": sorted(self.used.features)}
        names = {"kernel": self.kernel, "function": self.function}
        return {**names, "build": self.name, "capability": self.capability, **used, "faults": self.faults}


def shipped() -> list[str]:
    """Short names of the modules of this package that define `builds`."""
    return [name for name in _names() if hasattr(_module(name), "builds")]


@functools.cache
def _names() -> tuple[str, ...]:
    """Names of all modules of builds, from the package on: attention.decode."""
    found = pkgutil.walk_packages(quire.kernels.gpu.aot.builds.__path__, PACKAGE)
    return tuple(one.name.removeprefix(PACKAGE) for one in found if not one.ispkg)


def compile_build(build: Build, capability: int) -> Any:
    """`build` compiled for `capability`, as `triton.compile` returns it. ValueError when it is not a whole launch."""
    return triton.compile(
        source_of(build),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": build.num_warps, "num_stages": build.num_stages},
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One build that the table wants."""

    kernel: str
    """The module."""
    capability: int
    number: int
    """Among the module's builds for this chip."""
    recorded: Resources | None = None
    """Resources that the compiler gave it before; None: not known."""
    again: bool = False
    """Compile it even so, and compare."""


def row(job: Job) -> Row:
    """Compile one build where that is wanted, and judge it."""
    build = job_build(job)
    used, reasons = job.recorded, list[str]()
    if used is None or job.again:
        try:
            used = resources(compile_build(build, job.capability))
        except Exception as error:  # whatever the compiler raises is the verdict on this build, not the table's end
            used, reasons = None, [f"does not compile: {_last_line(error)}"]
    if used is not None:
        reasons = faults(build, job.capability, used)
    if job.recorded not in (None, used):
        reasons.append(f"recorded as {job.recorded}")
    return Row(job.kernel, build.kernel.__name__, build.name, job.capability, used, tuple(reasons))


def job_build(job: Job) -> Build:
    return _builds(job.kernel, job.capability)[job.number]


def wanted(kernels: Sequence[str], capabilities: Sequence[int], neighbours: Sequence[int]) -> list[Job]:
    """Every build of `kernels` for `capabilities`, and of those for `neighbours` what a chip has a say in."""
    return [
        Job(kernel, capability, number)
        for kernel in kernels
        for capability in (*capabilities, *neighbours)
        for number, build in enumerate(_builds(kernel, capability))
        if capability not in neighbours or build.differs_by_chip
    ]


def known(jobs: Sequence[Job], recorded: Recorded, again: int) -> list[Job]:
    """The jobs with what is recorded of them; `again` of those, drawn by lot, are compiled all the same."""
    found = [recorded.get(_key(job)) for job in jobs]
    drawn = [number for number, used in enumerate(found) if used is not None]
    drawn = random.sample(drawn, min(again, len(drawn)))
    return [
        Job(job.kernel, job.capability, job.number, used, number in drawn)
        for number, (job, used) in enumerate(zip(jobs, found, strict=True))
    ]


def table(jobs: Sequence[Job], processes: int) -> Iterator[Row]:
    """The row of each job, in order."""
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(row, jobs)


def _key(job: Job) -> Key:
    """A build that is not a whole launch has none: it does not compile, which nobody records."""
    try:
        return key_of(job_build(job), job.capability)
    except ValueError:
        return ""


def _module(name: str) -> ModuleType:
    """A module of this package by its name from the package on, or any other by its whole one."""
    return importlib.import_module(PACKAGE + name if name in _names() or "." not in name else name)


@functools.cache
def _builds(kernel: str, capability: int) -> list[Build]:
    return list(_module(kernel).builds(capability))


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no message'}"


def _widths(jobs: Sequence[Job]) -> list[int]:
    """Widths of the columns: names as long as the longest, the rest as long as what usually stands there."""
    kernels = max((len(job.kernel) for job in jobs), default=0)
    names = max((len(job_build(job).name) for job in jobs), default=0)
    return [kernels, names, 3, *(len(heading) for heading in _HEADINGS[3:7]), 48, len(_HEADINGS[8]), 0]


def _print(cells: Sequence[str], widths: Sequence[int]) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m quire.kernels.gpu.aot.compile", description=__doc__.splitlines()[0]
    )
    chips = sorted(SHARED_LIMITS)
    parser.add_argument("--capability", type=int, nargs="+", default=list(COMPILED), choices=chips)
    parser.add_argument(
        "--neighbours", type=int, nargs="+", default=[], choices=chips, metavar="CAPABILITY",
        help="more chips, for which only builds with matrix instructions, tiles or 8-bit floats are compiled",
    )  # fmt: skip
    parser.add_argument("--kernels", nargs="+", metavar="MODULE", help="of this package, or dotted; default: all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: cores")
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="do not compile what is as it was when recorded")
    parser.add_argument(
        "--again", type=int, default=0, metavar="N", help="of the recorded ones, compile N all the same"
    )
    parser.add_argument("--record", action="store_true", help="write the whole table to the file of --recorded")
    parser.add_argument("--json", action="store_true", help="end with one JSON array on the last line")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of what the command line asks for; the exit status: 1 when a build is at fault."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, so kernels are interpreted, not compiled: run with TRITON_INTERPRET=0")
    if args.jobs < 1:
        parser.error(f"--jobs: must be at least 1, got {args.jobs}")
    if (args.record or args.again) and args.recorded is None:
        parser.error("--record and --again need --recorded FILE")
    kernels = args.kernels or shipped()
    try:
        missing = [name for name in kernels if not hasattr(_module(name), "builds")]
    except ImportError as error:
        parser.error(f"--kernels: {error}")
    if missing:
        parser.error(f"--kernels: {', '.join(missing)} define no builds")
    jobs = wanted(kernels, args.capability, args.neighbours)
    if args.recorded is not None:
        jobs = known(jobs, Recorded.read(args.recorded), args.again)
    rows = _printed(jobs, args.jobs)
    failed = [row for row in rows if row.faults]
    print(
        f"triton {triton.__version__}: {len(rows)} builds of {len(kernels)} modules, {len(failed)} at fault, "
        f"{sum(job.recorded is None or job.again for job in jobs)} compiled"
    )
    if args.record:
        Recorded({_key(job): row.used for job, row in zip(jobs, rows, strict=True) if row.used}).write(args.recorded)
    if args.json:
        print(json.dumps([row.document() for row in rows]))
    return 1 if failed else 0


def _printed(jobs: Sequence[Job], processes: int) -> list[Row]:
    widths = _widths(jobs)
    _print(_HEADINGS, widths)
    rows = []
    for done in table(jobs, processes):
        _print(done.cells(), widths)
        rows.append(done)
    return rows


if __name__ == "__main__":
    sys.exit(main())
