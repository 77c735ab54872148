"""`quire bench tune`: measures the tile sizes of the GPU kernels on this machine's GPU and writes its table.

Each operation runs its candidates on the shapes of the published models, weights cold in the L2 cache, and the fastest
of each shape goes into a file named after the device, which the kernels read when they start. `speedup` is over the
tiles that are used without a table. A candidate that does not compile, hangs or breaks its process is passed over and
named under `failed`; what has been measured is in the file at once.
"""

import argparse
import math

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure
from quire.deploy.bench.report.report import Figure, Outcome

LAST_SHAPE_SECONDS = 3600.0
"""Most that the shape begun last may take, each of whose candidates has a time of its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", nargs="+", default=[], metavar="NAME", help="default: all that have trials")
    parser.add_argument("--out", metavar="FOLDER", default="", help="default: the folder the kernels read")
    parser.add_argument("--seconds", type=_seconds, help="begin no shape after so long; default: measure all")


def run(args: argparse.Namespace) -> Outcome:
    options = {"operations": args.operations, "out": args.out}
    timeout = None
    if args.seconds is not None:
        options["seconds"], timeout = args.seconds, args.seconds + LAST_SHAPE_SECONDS
    measured = measure("quire.kernels.gpu.tuning.tune", options, timeout_seconds=timeout)
    chosen = measured.get("chosen")
    if not isinstance(chosen, dict):
        raise BenchError("the measuring process printed no choice of tiles")
    figures: dict[str, Figure] = {
        operation: {shape: _figure(choice) for shape, choice in shapes.items()} for operation, shapes in chosen.items()
    }
    facts = {name: measured[name] for name in ("device", "file", "failed")}
    return Outcome(figures, {**options, **facts}, args.seed)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above zero, got {text!r}")
    return seconds


def _figure(choice: dict[str, object]) -> Figure:
    """One shape's choice on one line."""
    us, default_us = float(str(choice["us"])), choice["default_us"]
    speedup = f", speedup {float(str(default_us)) / us:.2f}" if default_us is not None else ""
    tiles = choice["tiles"]
    assert isinstance(tiles, dict)
    sizes = " ".join(f"{name}={size}" for name, size in tiles.items())
    return f"{sizes}: {us:.1f} us, {float(str(choice['gb_s'])):.0f} GB/s{speedup}"
