"""`quire bench worker`: what one step costs the worker's host, with the device's work taken out.

`host_ms` is `launch` and `collect` of a steady decode step together: the plan checked, tables and sampling staged, the
upload and everything else queued, the result read. It must hide behind the step that the device is running.
"""

import argparse

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure, samples
from quire.deploy.bench.report.report import Figure, Outcome, percentiles

OPTIONS = ("rows", "steps", "block_size", "prompt_len", "churn", "device", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=256, help="sequences that decode in every step")
    parser.add_argument("--steps", type=int, default=2000, help="steps measured")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--churn", type=float, default=0.0, help="sequences that end in each step, and others enter")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="whose streams and copies are used")


def run(args: argparse.Namespace) -> Outcome:
    config = {name: getattr(args, name) for name in OPTIONS}
    for name in ("rows", "steps", "block_size", "prompt_len"):
        if config[name] < 1:
            raise BenchError(f"--{name.replace('_', '-')}: must be at least 1, got {config[name]}")
    if not 0 <= args.churn <= args.rows:
        raise BenchError(f"--churn: must be in [0, {args.rows}], the number of rows, got {args.churn:g}")
    measured = measure("quire.worker.bench.host_time", config)
    launch, collect = samples(measured, "launch_ms"), samples(measured, "collect_ms")
    host = [sum(both) for both in zip(launch, collect, strict=True)]
    figures: dict[str, Figure] = {
        **percentiles("host_ms", host, (50, 99)),
        **percentiles("launch_ms", launch, (50, 99)),
        **percentiles("collect_ms", collect, (50, 99)),
        **percentiles("wire_ms", samples(measured, "wire_ms"), (50,)),
        "admits_per_step": int(str(measured["admits"])) / args.steps,
        "appends_per_step": int(str(measured["appends"])) / args.steps,
        "plan_bytes": int(str(measured["plan_bytes"])),
    }
    return Outcome(figures, config, args.seed, {"host_ms": host})
