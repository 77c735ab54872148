"""`quire bench machine`: the ceilings every CPU figure is compared with.

Read bandwidth of all cores together, and the arithmetic of one linear layer (1024 -> 2816, weights cold) with M rows
in fp32, bf16 and int8, each by the fastest layer known. A decode step of M sequences cannot beat the slower of its
weight bytes over the bandwidth and its operations over the linear's rate.
"""

import argparse

from quire.deploy.bench.bandwidth import read_bandwidth
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure
from quire.deploy.bench.report.report import Figure, Outcome
from quire.deploy.flags.sizes import parse_bytes

ROWS = (1, 16, 128, 1024)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), metavar="M", help="rows of the linear layer")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each linear and row count")
    parser.add_argument("--cold-bytes", type=parse_bytes, default=256 << 20, help="of weights cycled through")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def run(args: argparse.Namespace) -> Outcome:
    if args.seconds <= 0:
        raise BenchError(f"--seconds: must be positive, got {args.seconds:g}")
    if min(args.rows) < 1:
        raise BenchError(f"--rows: must be at least 1, got {min(args.rows)}")
    options = {
        "cold_bytes": args.cold_bytes,
        "rows": args.rows,
        "device": args.device,
        "seconds": args.seconds,
        "seed": args.seed,
    }
    cpu_read = read_bandwidth()
    measured = measure("quire.worker.bench.roofline", options)
    read = float(str(measured.get("read_bytes_per_s", cpu_read)))
    figures: dict[str, Figure] = {"read_gb_s": read / 1e9}
    series = {}
    for name in ("fp32", "bf16", "int8"):
        rates = [float(str(measured[f"{name}_{rows}"])) / 1e9 for rows in args.rows]
        figures[f"{name}_linear_gop_s"] = {f"M={rows}": rate for rows, rate in zip(args.rows, rates, strict=True)}
        series[f"{name} linear, GOP/s"] = rates
    config = {**options, "torch": measured["torch"], "threads": measured["threads"], "gpu": measured.get("device")}
    return Outcome(figures, config, args.seed, series)
