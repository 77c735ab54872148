"""The shares of file descriptors, one per connection: neither the gRPC nor the HTTP server takes the other's."""

import resource
from typing import NamedTuple

MAX_CONNECTIONS = 32_768
"""Most connections of both servers, where descriptors allow more."""
RESERVED = 128
"""Descriptors for listening, the scheduler, files, child processes, and connections that are being refused."""
MIN_CONNECTIONS = 64
GRPC_PART = 4
"""One connection in so many is gRPC's: its connections carry many calls, those of HTTP one at a time."""


class ConnectionShares(NamedTuple):
    """The most connections that may be open at once."""

    http: int
    grpc: int


def connection_shares(requested: int, has_http: bool) -> ConnectionShares:
    """The shares of `requested` connections; for 0 of those that the limit of open files leaves.

    Raises `ValueError` naming the remedy when there are too few descriptors.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - RESERVED
    if left < (requested or MIN_CONNECTIONS):
        field = f"max_connections: {requested} need" if requested else f"{MIN_CONNECTIONS} connections need"
        raise ValueError(
            f"{field} {(requested or MIN_CONNECTIONS) + RESERVED} open files and this process may have {soft}; "
            "raise the limit (ulimit -n, LimitNOFILE=)" + (" or lower max_connections" if requested else "")
        )
    most = requested or min(left, MAX_CONNECTIONS)
    if not has_http:
        return ConnectionShares(0, most)
    grpc = max(1, most // GRPC_PART)
    return ConnectionShares(max(1, most - grpc), grpc)
