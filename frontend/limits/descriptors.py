"""File descriptors, of which every connection is one: what each door may take, so that neither takes the other's."""

import resource
import socket
from typing import NamedTuple

MAX_CONNECTIONS = 32_768
"""Over both doors, where descriptors allow more."""
RESERVED = 128
"""For listening, the scheduler, files, the processes of templates and grammars, and connections that hear a refusal."""
MIN_CONNECTIONS = 64
GRPC_PART = 4
"""One in so many is gRPC's: its connections carry many calls, those of HTTP one at a time."""


class Connections(NamedTuple):
    """The most that may be open at once."""

    http: int
    grpc: int


def connections(asked: int, has_http: bool) -> Connections:
    """Shares of `asked` connections; of what the limit of open files leaves when that is 0.

    Raises `ValueError` naming the remedy when there are too few descriptors.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - RESERVED
    if left < (asked or MIN_CONNECTIONS):
        field = f"max_connections: {asked} need" if asked else f"{MIN_CONNECTIONS} connections need"
        raise ValueError(
            f"{field} {(asked or MIN_CONNECTIONS) + RESERVED} open files and this process may have {soft}; "
            "raise the limit (ulimit -n, LimitNOFILE=)" + (" or lower max_connections" if asked else "")
        )
    most = asked or min(left, MAX_CONNECTIONS)
    if not has_http:
        return Connections(0, most)
    grpc = max(1, most // GRPC_PART)
    return Connections(max(1, most - grpc), grpc)


def num_addresses(host: str) -> int:
    """A name may stand for several, as localhost does for 127.0.0.1 and ::1; each is listened on."""
    try:
        return len({found[4][0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except socket.gaierror:
        return 1  # whoever listens will say so
