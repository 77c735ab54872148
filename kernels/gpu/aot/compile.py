"""Compiles every kernel as it ships for GPUs that are not here, and checks what the compiler made of it.

`python -m quire.kernels.gpu.aot.compile [--capability 80 90] [--kernels linear.norm] [--jobs N] [--json]` needs neither
GPU nor driver. It prints one row for each `Build` and ends with status 1 when any spills, has a stack frame, takes more
shared memory than the chip has, lacks an instruction it is meant to use, or does not compile.
"""

import argparse
import functools
import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import quire.kernels.gpu.aot.builds
from quire.kernels.chips import COMPILED
from quire.kernels.gpu.aot.build import Build
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
    arguments = build.kernel.arg_names
    given = {**build.signature, **build.constants}
    if sorted(arguments) != sorted([*build.signature, *build.constants]):
        raise ValueError(f"the kernel takes {arguments}, signature and constants together name {list(given)}")
    if unknown := set(build.divisible).difference(build.signature):
        raise ValueError(f"divisible: {sorted(unknown)} are not in the signature")
    return triton.compile(
        ASTSource(
            build.kernel,
            signature={name: build.signature.get(name, "constexpr") for name in arguments},
            constexprs=dict(build.constants),
            attrs={(arguments.index(name),): [["tt.divisibility", 16]] for name in build.divisible},
        ),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": build.num_warps, "num_stages": build.num_stages},
    )


def row(job: tuple[str, int, int]) -> Row:
    """Compile and judge one build: (module, capability, its number among the module's builds)."""
    kernel, capability, number = job
    build = _builds(kernel, capability)[number]
    try:
        used = resources(compile_build(build, capability))
    except Exception as error:  # whatever the compiler raises is the verdict on this build, not the end of the table
        return Row(
            kernel, build.kernel.__name__, build.name, capability, None, (f"does not compile: {_last_line(error)}",)
        )
    return Row(kernel, build.kernel.__name__, build.name, capability, used, tuple(faults(build, capability, used)))


def table(kernels: Sequence[str], capabilities: Sequence[int], jobs: int) -> Iterator[Row]:
    """Every build of `kernels` for `capabilities`, in that order, compiled in `jobs` processes."""
    wanted = [
        (kernel, capability, number)
        for kernel in kernels
        for capability in capabilities
        for number in range(len(_builds(kernel, capability)))
    ]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(row, wanted)


def _module(name: str) -> ModuleType:
    """A module of this package by its name from the package on, or any other by its whole one."""
    return importlib.import_module(PACKAGE + name if name in _names() or "." not in name else name)


@functools.cache
def _builds(kernel: str, capability: int) -> list[Build]:
    return list(_module(kernel).builds(capability))


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no message'}"


def _widths(kernels: Sequence[str], capabilities: Sequence[int]) -> list[int]:
    """Widths of the columns: names as long as the longest, the rest as long as what usually stands there."""
    builds = [build for kernel in kernels for capability in capabilities for build in _builds(kernel, capability)]
    names = max((len(build.name) for build in builds), default=0)
    return [max(map(len, kernels)), names, 3, *(len(heading) for heading in _HEADINGS[3:7]), 48, len(_HEADINGS[8]), 0]


def _print(cells: Sequence[str], widths: Sequence[int]) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of what the command line asks for; the exit status: 1 when a build is at fault."""
    parser = argparse.ArgumentParser(
        prog="python -m quire.kernels.gpu.aot.compile", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--capability", type=int, nargs="+", default=list(COMPILED), choices=sorted(SHARED_LIMITS))
    parser.add_argument("--kernels", nargs="+", metavar="MODULE", help="of this package, or dotted; default: all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: cores")
    parser.add_argument("--json", action="store_true", help="end with one JSON array on the last line")
    args = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, so kernels are interpreted, not compiled: run with TRITON_INTERPRET=0")
    if args.jobs < 1:
        parser.error(f"--jobs: must be at least 1, got {args.jobs}")
    kernels = args.kernels or shipped()
    try:
        missing = [name for name in kernels if not hasattr(_module(name), "builds")]
    except ImportError as error:
        parser.error(f"--kernels: {error}")
    if missing:
        parser.error(f"--kernels: {', '.join(missing)} define no builds")
    widths = _widths(kernels, args.capability)
    _print(_HEADINGS, widths)
    rows = []
    for done in table(kernels, args.capability, args.jobs):
        _print(done.cells(), widths)
        rows.append(done)
    failed = [row for row in rows if row.faults]
    print(f"triton {triton.__version__}: {len(rows)} builds of {len(kernels)} modules, {len(failed)} at fault")
    if args.json:
        print(json.dumps([row.document() for row in rows]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
