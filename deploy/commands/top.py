"""`quire top`: what a running engine does, live in the terminal, over its public API."""

import argparse
import os
import sys
import time

from quire.deploy.commands.connect import add_connection_arguments, connect, failure
from quire.deploy.flags.arguments import UsageError
from quire.proto.api import RequestError
from quire.proto.process import exit_codes

KEY_VARIABLE = "QUIRE_ADMIN_KEY"
TIMEOUT_SECONDS = 10.0
DESCRIPTION = (
    "Show throughput, step times, KV cache, queue and running requests of a `quire serve`, live. "
    f"Where the server asks for a key, it is the admin key: --api-key-file, or the variable {KEY_VARIABLE}."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="print it once and end, as without a terminal")


def run(arguments: argparse.Namespace) -> int:
    """0 after Ctrl-C or one print, 1 when the server cannot be asked. Raises `UsageError` for an argument."""
    from quire.deploy.commands.top_screen import TopScreen  # loads rich, which no other command needs

    if not 0.1 <= arguments.interval <= 3600:
        raise UsageError(f"--interval: must be in [0.1, 3600] seconds, got {arguments.interval:g}")
    screen = TopScreen(arguments.target)
    keys = os.environ.get(KEY_VARIABLE, "").split()  # a server takes several from it
    with connect(arguments, keys[0] if keys else None, TIMEOUT_SECONDS) as client:
        try:
            screen.show(client.server_info(), client.status())
        except RequestError as error:
            print(failure(error, arguments), file=sys.stderr)
            return exit_codes.FAILED
        if arguments.once or not screen.is_terminal:
            screen.print()
            return exit_codes.SUCCESS
        try:
            with screen.live():
                while True:
                    time.sleep(arguments.interval)
                    try:
                        screen.show(client.server_info(), client.status())
                    except RequestError as error:  # it may come back
                        screen.lose(error.message)
        except KeyboardInterrupt:
            return exit_codes.SUCCESS
