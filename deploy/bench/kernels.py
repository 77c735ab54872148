"""`quire bench kernels`: every operation beside the limits of its device and torch's own form of it.

`share_of_limit` is the least time the bytes and operations need, at the copy bandwidth and the matrix rate measured in
the same run, over the time taken; `share_of_read` is that of the bytes at the read bandwidth, which is the limit of a
product with a few rows; `vs_torch` is torch's time over ours. Caches are cold unless `cold` is false.
"""

import argparse
import math

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure
from quire.deploy.bench.report.report import Figure, Outcome
from quire.worker.config import MOST_THREADS

KEYS = ("ms", "gb_s", "tflop_s", "share_of_limit", "share_of_read", "vs_torch", "error", "cold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", nargs="+", default=[], metavar="NAME", help="operations to measure; default: all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="decides the shapes too")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each shape, ours and torch's each")
    parser.add_argument("--num-threads", type=int, default=0, metavar="N", help="CPU threads; 0: all cores")


def run(args: argparse.Namespace) -> Outcome:
    if not 0 < args.seconds < math.inf:
        raise BenchError(f"--seconds: must be positive and finite, got {args.seconds:g}")
    if not 0 <= args.num_threads <= MOST_THREADS:
        raise BenchError(f"--num-threads: must be 0 to {MOST_THREADS}, got {args.num_threads}")
    options = {
        "device": args.device,
        "ops": args.op,
        "seconds": args.seconds,
        "num_threads": args.num_threads,
        "seed": args.seed,
    }
    measured = measure("quire.kernels.bench", options)
    rows, ceilings = measured["rows"], measured["ceilings"]
    if not isinstance(rows, list) or not isinstance(ceilings, dict):
        raise BenchError("the measuring process printed no rows")
    if failed := measured["failed"]:
        raise BenchError(f"what is wrong has no speed: {failed}")
    by_operation: dict[str, dict[str, Figure]] = {}
    for row in rows:
        by_operation.setdefault(row["op"], {})[row["shape"]] = {key: row[key] for key in KEYS}
    figures: dict[str, Figure] = {**{name: float(rate) for name, rate in ceilings.items()}, **by_operation}
    config = {**options, "torch": measured["torch"], "threads": measured["threads"], "chip": measured["device"]}
    return Outcome(figures, config, args.seed, {"share of limit": [float(row["share_of_limit"]) for row in rows]})
