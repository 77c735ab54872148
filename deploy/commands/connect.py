"""Connection of a command to a running server: target, key, TLS."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.deploy.commands.target import checked, unreached
from quire.deploy.flags.arguments import UsageError
from quire.proto.api import RequestError
from quire.proto.process.visible import visible

if TYPE_CHECKING:
    from quire.proto.client import Client

DEFAULT_TARGET = "localhost:50051"
UNREACHED = ("UNAVAILABLE", "UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED")
"""Statuses that gRPC has for a server it could not talk to."""


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="HOST:PORT", help="(default: %(default)s)")
    parser.add_argument("--api-key-file", default="", metavar="FILE", help="of which the first key is sent")
    parser.add_argument("--tls", action="store_true", help="the server speaks TLS; implied by the next three")
    parser.add_argument("--tls-ca-file", default="", metavar="FILE", help="PEM; who signed the server's certificate")
    parser.add_argument("--tls-cert-file", default="", metavar="FILE", help="PEM; shown to a server that asks for one")
    parser.add_argument("--tls-key-file", default="", metavar="FILE", help="PEM; the key of --tls-cert-file")


def connect(
    arguments: argparse.Namespace, default_key: str | None = None, timeout_seconds: float | None = None
) -> "Client":
    """A client that has not called yet. Raises `UsageError` for a target or file that cannot be used."""
    from quire.proto.client import Client  # loads gRPC, which most commands do not need

    target = checked(arguments.target)
    api_key = first_key(arguments.api_key_file) or default_key
    options: dict[str, Any] = {} if timeout_seconds is None else {"timeout_seconds": timeout_seconds}
    try:
        return Client(
            target,
            api_key,
            tls=arguments.tls,
            tls_ca_file=arguments.tls_ca_file,
            tls_cert_file=arguments.tls_cert_file,
            tls_key_file=arguments.tls_key_file,
            **options,
        )
    except ValueError as error:
        raise UsageError(f"--{error}".replace("_", "-", 2)) from error


def failure(error: RequestError, arguments: argparse.Namespace) -> str:
    """One line for a person. Where gRPC could not talk to the target it says what is there instead."""
    message = error.message
    if error.reason == "UNAUTHENTICATED":
        message += "; name one with --api-key-file"
    elif not error.reason and error.status in UNREACHED:
        tls = arguments.tls or any((arguments.tls_ca_file, arguments.tls_cert_file, arguments.tls_key_file))
        message = f"--target {arguments.target}: {unreached(arguments.target, tls=tls) or message}"
    elif not error.reason and error.status == "UNIMPLEMENTED":
        message = f"--target {arguments.target}: a gRPC server is there, but none of quire's; give another target"
    return visible(f"quire: error: {message} [{error.reason or error.status}]")


def first_key(path: str) -> str | None:
    """The first key of a file; None without a file. Raises `UsageError`."""
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path}: {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise UsageError(f"--api-key-file {path}: holds no key; put one on its first line")
    if not re.fullmatch(r"[\x21-\x7e]+", keys[0]):
        raise UsageError(f"--api-key-file {path}: a key is visible ASCII characters without spaces; correct the first")
    return keys[0]
