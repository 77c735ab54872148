"""The sub-commands of `quire bench`. Each is a module with `add_arguments(parser)` and `run(args) -> Outcome`."""

import argparse
import functools
import sys
from types import ModuleType

from quire.deploy.bench import control, kernels, latency, machine, offline, scheduler, serve, tune, worker
from quire.deploy.bench.report import plot
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.report import machine as describe_machine
from quire.deploy.bench.report.report import report
from quire.proto.process import exit_codes

BENCHES: dict[str, tuple[ModuleType, str]] = {
    "scheduler": (scheduler, "cost of one scheduler step, alone in a process"),
    "control": (control, "tokens per second through real frontends and scheduler, with a worker of fixed step time"),
    "serve": (serve, "load a running server over gRPC or HTTP: latencies and throughput"),
    "offline": (offline, "throughput of one engine given all prompts at once"),
    "latency": (latency, "prefill and decode time of one batch, against the limit of memory"),
    "worker": (worker, "cost of one step to a worker's host, with the device's work taken out"),
    "kernels": (kernels, "every kernel against the limits of its device and against torch"),
    "machine": (machine, "what this machine allows: read bandwidth, fp32 and int8 linear"),
    "tune": (tune, "measure the GPU kernels' tile sizes on this machine and write its table"),
}

ALIASES = {"offline": ("throughput",)}
"""Names that other engines have for the same."""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add every bench; each sets `func(args) -> int`, the exit code."""
    for name, (module, summary) in BENCHES.items():
        parser = subparsers.add_parser(name, help=summary, description=module.__doc__, aliases=ALIASES.get(name, ()))
        module.add_arguments(parser)
        common = parser.add_argument_group("report")
        common.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
        common.add_argument("--plot", metavar="FILE", default="", help="draw the samples (needs quire[plot])")
        if not any("--seed" in action.option_strings for action in parser._actions):
            common.add_argument("--seed", type=int, default=0, help="of everything drawn at random")
        parser.set_defaults(func=functools.partial(_execute, name, module))


def _execute(name: str, module: ModuleType, args: argparse.Namespace) -> int:
    try:
        if args.plot:
            plot.require(args.plot)
        before = describe_machine()
        outcome = module.run(args)
        if args.plot:
            plot.write(args.plot, f"quire bench {name}", outcome.series)
    except BenchError as error:
        print(f"quire bench {name}: {error}", file=sys.stderr)
        return exit_codes.FAILED
    report(name, outcome, before=before, as_json=args.json)
    return exit_codes.SUCCESS
