"""`python -m quire.deploy.container ARGUMENTS`: what the image runs. The arguments are quire's, or of vLLM's image.

An engine listens on every interface here unless it is told an address: on the container's loopback nobody finds it.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from quire.deploy.__main__ import main as run
from quire.deploy.__main__ import with_command
from quire.deploy.commands import serve
from quire.deploy.flags.arguments import read_yaml
from quire.deploy.flags.other_arguments import notices
from quire.deploy.module_names import refuse
from quire.proto.process.addresses import ANY_V4, ANY_V6, has_ipv6

SERVERS = ("entrypoints.openai.api_server", "entrypoints.cli.main", "")
"""Modules of `vllm` and `quire` behind `python -m`; what follows them is a command, or arguments of `serve`."""
HUB_CACHE = Path("/root/.cache/huggingface")
"""The place in other images where a line of theirs mounts the hub's cache."""


def main(words: Sequence[str] | None = None) -> int:
    """The exit code of the `quire` command that these words mean."""
    find_hub_cache()
    return run(command(sys.argv[1:] if words is None else words), listen)


def command(words: Sequence[str]) -> list[str]:
    """The arguments of `quire` for what stands behind the image's name: without a command they are those of `serve`."""
    first = words[0] if words else ""
    if first in ("python", "python3") and len(words) > 2 and words[1] == "-m":
        package, _, module = words[2].partition(".")
        if package not in ("vllm", "quire") or module not in SERVERS:
            refuse(words[2])
        words = words[3:]
    elif first in ("vllm", "quire"):
        words = words[1:]
    return with_command(words)


def listen(namespace: argparse.Namespace) -> None:
    """Let `quire serve` listen where it is found, unless flags or file say where. Raises `UsageError` for the file."""
    if namespace.func is not serve.run or "host" in namespace:
        return
    if namespace.config and "host" in read_yaml(Path(namespace.config), []):
        return
    namespace.host = every_interface()
    notices(namespace).append(
        f"--host {namespace.host}: listens on every interface of this container; who reaches a published port is "
        "answered, or needs a key where keys are given"
    )


def every_interface() -> str:
    """The address on which all interfaces of this machine are reached, by both families where the kernel has them."""
    return ANY_V6 if has_ipv6() and socket.has_dualstack_ipv6() else ANY_V4


def find_hub_cache() -> None:
    """Read the hub's cache where a line for another image has mounted it, if this user may."""
    if os.access(HUB_CACHE, os.R_OK | os.X_OK):
        os.environ["HF_HOME"] = str(HUB_CACHE)


if __name__ == "__main__":
    sys.exit(main())
