"""`quire bench scheduler`: what one step costs the scheduler, without sockets, workers or clients.

`step_ms` is `handle(StepDone)` and `plan()` together, the whole of a steady decode step; `handle_ms` the first alone.
`submit_to_plan_ms` is the core's own time from a request's arrival to the plan that admits it, when a slot is free.
"""

import argparse

import numpy as np

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure, samples
from quire.deploy.bench.report.report import Figure, Outcome, percentile, percentiles

OPTIONS = ("running", "waiting", "steps", "probes", "block_size", "prompt_len", "output_len", "image_len", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--running", type=int, default=256, help="outputs that decode in every step")
    parser.add_argument("--waiting", type=int, default=10_000, help="requests queued behind them")
    parser.add_argument("--steps", type=int, default=3000, help="steps measured")
    parser.add_argument("--probes", type=int, default=300, help="single submissions timed into a plan")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=1024, help="one output ends each output-len/running steps")
    parser.add_argument("--image-len", type=int, default=0, help="tokens of an image in each prompt; 0: text alone")


def run(args: argparse.Namespace) -> Outcome:
    config = {name: getattr(args, name) for name in OPTIONS}
    for name, value in config.items():
        least = 0 if name in ("waiting", "image_len", "seed") else 1
        if value < least:
            raise BenchError(f"--{name.replace('_', '-')}: must be at least {least}, got {value}")
    measured = measure("quire.scheduler.bench", config)
    step, idle_queue = samples(measured, "step_ms"), samples(measured, "step_ms_without_waiting")
    plan_bytes = samples(measured, "plan_bytes")
    median, without = percentile(step, 50), percentile(idle_queue, 50)
    figures: dict[str, Figure] = {
        **percentiles("step_ms", step, (50, 99, 99.9)),
        **percentiles("step_cpu_ms", samples(measured, "step_cpu_ms"), (50, 99.9)),
        **percentiles("handle_ms", samples(measured, "handle_ms"), (50,)),
        "plan_bytes": int(np.median(plan_bytes)) if plan_bytes else None,
        "plan_bytes_max": int(max(plan_bytes, default=0)),
        **percentiles("plan_codec_ms", samples(measured, "plan_codec_ms"), (50,)),
        **percentiles("submit_to_plan_ms", samples(measured, "submit_to_plan_ms"), (50, 99)),
        **percentiles("audit_ms", samples(measured, "audit_ms"), (50,)),
        "step_ms_p50_without_waiting": without,
        "waiting_cost_ratio": median / without if median is not None and without else None,
        "rows_per_plan": float(str(measured["rows_per_plan"])),
        "finished": int(str(measured["finished"])),
    }
    return Outcome(figures, config, args.seed, {"step_ms": step, "step_ms_without_waiting": idle_queue})
