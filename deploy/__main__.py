"""The command `quire`: a sub-command is a module with `DESCRIPTION`, `add_arguments(parser)` and `run(arguments)`."""

import argparse
import os
import sys
from collections.abc import Callable
from types import ModuleType

from quire.deploy.bench import commands as bench
from quire.deploy.commands import convert, doctor, generate, run_batch, serve, top
from quire.deploy.flags.arguments import Parser, UsageError
from quire.proto.process import exit_codes
from quire.proto.process.version import version

COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "serve": (serve, "start an engine and serve its API"),
    "generate": (generate, "ask a running server and stream the answer"),
    "run-batch": (run_batch, "answer a file of requests"),
    "top": (top, "watch a running server"),
    "convert": (convert, "make safetensors of pickled weights"),
    "doctor": (doctor, "show device, versions, kernels, and what would be refused"),
}


def build_parser() -> argparse.ArgumentParser:
    """Every subcommand with its flags; `func` of the parsed namespace runs it and returns the exit code."""
    parser: argparse.ArgumentParser = Parser(prog="quire", description="A serving engine for large language models.")
    parser.add_argument("--version", action="version", version=f"quire {version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = subparsers.add_parser(name, help=summary, description=module.DESCRIPTION)
        module.add_arguments(command)
        command.set_defaults(func=module.run)
    bench_parser = subparsers.add_parser("bench", help="measure", description="Measure an engine or parts of one.")
    bench.register(bench_parser.add_subparsers(title="benches", metavar="BENCH", required=True))
    return parser


def main(
    arguments: list[str] | None = None, adjust: Callable[[argparse.Namespace], None] = lambda namespace: None
) -> int:
    """The exit code. `adjust` may change what was parsed before it runs, or raise `UsageError`."""
    namespace = build_parser().parse_args(arguments)
    try:
        adjust(namespace)
        code: int = namespace.func(namespace)
        return code
    except UsageError as error:
        print(f"quire: error: {error}", file=sys.stderr)
        return exit_codes.REFUSED
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed on the way out
        return exit_codes.PIPE_CLOSED
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
