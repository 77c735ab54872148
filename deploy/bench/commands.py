"""The sub-commands of `quire bench`. Each is a module with `add_arguments(parser)` and `run(args) -> Outcome`."""

import argparse
import functools
import importlib
import sys
from types import ModuleType

from quire.deploy.bench.report import plot
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.report import machine, report
from quire.deploy.flags.arguments import CommandParser
from quire.proto.process import exit_codes
from quire.proto.process.visible import visible

BENCHES = {
    "scheduler": "cost of one scheduler step, alone in a process",
    "control": "tokens per second through real frontends and scheduler, with a worker of fixed step time",
    "serve": "load a running server over gRPC or HTTP: latencies and throughput",
    "offline": "throughput of one engine given all prompts at once",
    "latency": "prefill and decode time of one batch, against the limit of memory",
    "worker": "cost of one step to a worker's host, with the device's work taken out",
    "kernels": "every kernel against the limits of its device and against torch",
    "machine": "what this machine allows: read bandwidth, fp32 and int8 linear",
    "tune": "measure the GPU kernels' tile sizes on this machine and write its table",
}
"""Modules beside this one, and what they measure."""

ALIASES = {"offline": ("throughput",)}
"""Names that other engines have for the same."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add every bench to the parser of `quire bench`; each sets `func(args) -> int`, the exit code."""
    benches = parser.add_subparsers(title="benches", metavar="BENCH", required=True, parser_class=CommandParser)
    for name, summary in BENCHES.items():
        benches.add_parser(name, help=summary, aliases=ALIASES.get(name, ()), fill=functools.partial(_fill, name))


def _fill(name: str, parser: argparse.ArgumentParser) -> None:
    module = importlib.import_module(f".{name}", __package__)
    parser.description = module.__doc__
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
        before = machine()
        outcome = module.run(args)
        if args.plot:
            plot.write(args.plot, f"quire bench {name}", outcome.series)
    except BenchError as error:
        print(visible(f"quire bench {name}: {error}"), file=sys.stderr)
        return exit_codes.FAILED
    report(name, outcome, before=before, as_json=args.json)
    return exit_codes.SUCCESS
