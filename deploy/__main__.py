"""The command `quire`: a sub-command is a module with `DESCRIPTION`, `add_arguments(parser)` and `run(arguments)`."""

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from quire.deploy.flags.arguments import CommandParser, Parser, UsageError
from quire.deploy.supervisor.signals import Stopped, StopSignals
from quire.proto.process import exit_codes
from quire.proto.process.version import version
from quire.proto.process.visible import visible

COMMANDS = {
    "serve": ("serve", "start an engine and serve its API"),
    "generate": ("generate", "ask a running server and stream the answer"),
    "run-batch": ("run_batch", "answer a file of requests"),
    "top": ("top", "watch a running server"),
    "convert": ("convert", "make safetensors of pickled weights"),
    "doctor": ("doctor", "show device, versions, kernels, and what would be refused"),
}
"""Modules of `quire.deploy.commands`, and what they do."""


def build_parser() -> argparse.ArgumentParser:
    """Every subcommand with its flags; `func` of the parsed namespace runs it and returns the exit code."""
    parser: argparse.ArgumentParser = Parser(prog="quire", description="A serving engine for large language models.")
    parser.add_argument("--version", action="version", version=f"quire {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, (module, summary) in COMMANDS.items():
        commands.add_parser(name, help=summary, fill=functools.partial(_fill, module))
    commands.add_parser("bench", help="measure", description="Measure an engine or parts of one.", fill=_fill_bench)
    return parser


def with_command(words: Sequence[str]) -> list[str]:
    """Arguments of `quire`: without a command they are those of `serve`."""
    if words and words[0] in (*COMMANDS, "bench", "-h", "--help", "--version"):
        return list(words)
    return ["serve", *words]


def _fill(module: str, parser: argparse.ArgumentParser) -> None:
    command = importlib.import_module(f"quire.deploy.commands.{module}")
    parser.description = command.DESCRIPTION
    command.add_arguments(parser)
    parser.set_defaults(func=command.run)


def _fill_bench(parser: argparse.ArgumentParser) -> None:
    from quire.deploy.bench import commands

    commands.register(parser)


def main(
    arguments: list[str] | None = None, adjust: Callable[[argparse.Namespace], None] = lambda namespace: None
) -> int:
    """The exit code. `adjust` may change what was parsed before it runs, or raise `UsageError`."""
    signals = StopSignals()
    try:
        with signals.raised():
            namespace = build_parser().parse_args(arguments)
            adjust(namespace)
            namespace.stop_signals = signals
            code: int = namespace.func(namespace)
            return code
    except UsageError as error:
        print(visible(f"quire: error: {error}"), file=sys.stderr)
        return exit_codes.REFUSED
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed on the way out
        return exit_codes.PIPE_CLOSED
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except Stopped:
        return exit_codes.TERMINATED


if __name__ == "__main__":
    sys.exit(main())
