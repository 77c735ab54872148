"""The count of gRPC connections, the closing of silent ones before they keep others out, and corks for crowded ones.

The library accepts and serves them. Its own bound closes new ones when it is reached, so silent connections would be
all that is left. It names none of its sockets; they are found among this process' descriptors, by their port.
"""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import stat
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn

from quire.frontend.grpc.call_limit import CallLimitInterceptor
from quire.frontend.grpc.corks import Corks
from quire.frontend.metrics.metrics import Metrics

LOOK_SECONDS = 1.0
HURRY_SECONDS = 0.02
"""Time between two looks after some were closed: new connections find only the room that is left until then."""
HURRIED_SECONDS = 10.0
"""Time of such looks since the last one was closed: whoever opens too many is likely to go on."""
LOOK_SHARE = 0.02
"""Largest share of the time spent looking."""
HURRY_SHARE = 0.1
"""The same share while in a hurry."""
CROWDED = 3 / 4
"""Share of the library's bound above which silent connections are closed, down to `ROOMY`.

The rest is for those that come between two looks; the library refuses them when it is used up.
"""
ROOMY = 1 / 2
NEW_SECONDS = 2.0
"""Time for which a connection without a call is new: a TLS handshake and a request fit in."""
KEPT_SECONDS = 30.0
"""Time for which a client that made a call is likely to make another."""
CROWD = 8
"""Number of open calls from which a connection is corked."""
MOST_CORKED = 16
"""Largest number of corked connections, those with the most calls: each costs two system calls every time."""

Address = tuple[str, int]

log = logging.getLogger("quire.frontend")


class GrpcConnections:
    """`run` beside the server that listens on `port`."""

    def __init__(self, max_connections: int, calls: CallLimitInterceptor, corks: Corks, metrics: Metrics) -> None:
        self.num_open = 0
        """Number of open connections at the last look."""
        self._max_connections = max_connections
        self._calls = calls
        self._corks = corks
        self._metrics = metrics
        self._since: dict[Address, float] = {}
        """Monotonic time at which a connection was first seen."""

    async def run(self, port: int) -> None:
        """Look, close silent connections and cork crowded ones, until cancelled."""
        with ThreadPoolExecutor(1, thread_name_prefix="connections") as pool:
            try:
                await self._look(port, pool)
            finally:
                self._corks.use(())

    async def _look(self, port: int, pool: ThreadPoolExecutor) -> NoReturn:
        loop = asyncio.get_running_loop()
        hurried_until = 0.0
        while True:
            began = time.monotonic()
            try:
                found = await loop.run_in_executor(pool, _connected, port)
            except OSError as error:
                log.warning("connections were not counted: %s", error)
                await asyncio.sleep(LOOK_SECONDS)
                continue
            ended = time.monotonic()
            if self._look_after(found, ended):
                hurried_until = ended + HURRIED_SECONDS
            self._corks.use(self._crowded(found))
            hurry = ended < hurried_until
            share, seconds = (HURRY_SHARE, HURRY_SECONDS) if hurry else (LOOK_SHARE, LOOK_SECONDS)
            await asyncio.sleep(max((ended - began) / share, seconds))

    def _crowded(self, found: dict[Address, int]) -> Iterator[socket.socket]:
        """The sockets of connections with many calls."""
        for peer, num_calls in self._calls.open.most_common(MOST_CORKED):
            address = _address(peer)
            if num_calls >= CROWD and address in found:
                with suppress(OSError):
                    yield _sight(found[address], address)

    def _look_after(self, found: dict[Address, int], now: float) -> int:
        """Close silent connections when there are too many; the number closed."""
        self._since = {address: self._since.get(address, now) for address in found}
        self.num_open = len(found)
        ended = {_address(peer): (peer, at) for peer, at in self._calls.ended_at.items()}
        for address, (peer, _) in ended.items():
            if address not in found:
                del self._calls.ended_at[peer]
        if len(found) <= CROWDED * self._max_connections:
            return 0
        busy = {_address(peer) for peer in self._calls.open}
        called = {address: at for address, (_, at) in ended.items() if address is not None}
        order = _closing_order({one: at for one, at in self._since.items() if one not in busy}, called, now)
        num_excess = len(found) - int(ROOMY * self._max_connections)
        closed = [one for one in order[:num_excess] if _close(found[one], one)]
        self._metrics.count("connections_closed_total", (("door", "grpc"),), len(closed))
        return len(closed)


def _closing_order(since: dict[Address, float], called: dict[Address, float], now: float) -> list[Address]:
    """The connections, first seen at `since`, whose newest calls ended at `called`, in the order of their closing.

    Those that never made a call go before those that did and, of equals, the longest silent; but a new one goes only
    when all that is left are others as new and clients that called a moment ago.
    """

    def rank(one: Address) -> tuple[bool, bool, float]:
        has_called = one in called
        active = max(since[one], called[one]) if has_called else since[one]
        return now - active < (KEPT_SECONDS if has_called else NEW_SECONDS), has_called, active

    return sorted(since, key=rank)


def _connected(port: int) -> dict[Address, int]:
    """The peers of this process' connections on a port -> their descriptors. Raises `OSError`: none is left to look."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            with _copy(int(name)) as sight:
                if sight.getsockname()[1:2] == (port,):
                    found[_normal(*sight.getpeername()[:2])] = int(name)
        except OSError:
            continue  # it is no socket, it listens, or it was closed while we looked
    return found


def _close(descriptor: int, address: Address) -> bool:
    """Close a connection unless its descriptor is another's by now. The library reads the end and closes its side."""
    try:
        with _sight(descriptor, address) as sight:
            sight.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def _sight(descriptor: int, address: Address) -> socket.socket:
    """A copy of a connection's socket. Raises `OSError` when the descriptor is another's by now."""
    sight = _copy(descriptor)
    try:
        if _normal(*sight.getpeername()[:2]) == address:
            return sight
        raise OSError(errno.ENOTCONN, "another connection")
    except BaseException:
        sight.close()
        raise


def _copy(descriptor: int) -> socket.socket:
    """The socket under a descriptor of our own: another thread may close the first at any time.

    Raises `OSError` when it is no socket.
    """
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTSOCK, "no socket")
    return socket.socket(fileno=os.dup(descriptor))


def _address(peer: str) -> Address | None:
    """The address in the library's name of a peer: `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`; None where it has none."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    try:
        return _normal(host.strip("[]"), int(port))
    except ValueError:
        return None  # `unknown`


def _normal(host: str, port: int) -> Address:
    ip = ipaddress.ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip), port
