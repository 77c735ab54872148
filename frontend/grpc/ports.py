"""The opening of a port by the gRPC library, on the addresses that are meant and on no other."""

import errno
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from quire.proto.process.addresses import ANY_V4, ListenAddress, has_ipv6

TRIES = 500
PAUSE_SECONDS = 0.01


def open_port(addresses: Sequence[ListenAddress], port: int, add: Callable[[str], int]) -> int:
    """Open a port, for 0 a free one, on all addresses by `add`; its number. Raises `OSError`."""
    for address in addresses:
        alone = _without_ipv6(port) if address.host == ANY_V4 and has_ipv6() else nullcontext(port)
        with alone as number:
            port = add(address.written(number))
    return port


@contextmanager
def _without_ipv6(port: int) -> Iterator[int]:
    """Hold the port of `::` for a moment: the library takes it together with that of 0.0.0.0, if it can.

    Without SO_REUSEPORT, since others with it could have it, too; so one process holds it at a time, and others wait.
    """
    for _ in range(TRIES):
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as held:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # over connections that wait to be forgotten
            try:
                held.bind(("::", port))
                held.listen()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                yield held.getsockname()[1]
                return
        time.sleep(PAUSE_SECONDS)
    raise OSError(f"{port} of IPv6 belongs to another program; name another port, or give --host ::")
