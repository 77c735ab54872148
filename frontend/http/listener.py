"""The HTTP listener on the frontend's own loop: uvicorn's protocol, none of its server.

Several frontends listen on one port (SO_REUSEPORT), as the gRPC server does.
"""

import asyncio
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Sequence
from functools import partial

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from quire.frontend.config import FrontendConfig
from quire.frontend.fault_log import FaultLog
from quire.frontend.http.connection import UNSENT_BYTES, BoundedConnection
from quire.frontend.http.connection_limits import MAX_LINGERING, ConnectionLimits
from quire.frontend.metrics.metrics import Metrics
from quire.proto.process.addresses import ListenAddress

BACKLOG = 1024
ACCEPTS_PER_TURN = 16
"""Most connections that are accepted before other work has its turn."""
ACCEPT_PAUSE_SECONDS = 1.0
"""Pause where this machine has no descriptor or memory for another connection."""
TLS_BUFFER_BYTES = 64 << 10
"""asyncio's TLS holds a buffer per connection, by default four times as large: too much for thousands of idle ones."""
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 2, socket.TCP_USER_TIMEOUT: 80_000}
"""A client whose machine or network is gone without a word is noticed within 80 s, as over gRPC."""
TCP_NOTSENT_LOWAT = 25
"""Linux's number; the module `socket` of Python 3.11 has no name for it."""


class HttpListener:
    """`start`, then `close` once nothing is open any more.

    It accepts by itself: asyncio's server counts no connection whose TLS handshake goes on, and without descriptors it
    tries, and logs, a thousand times a second.
    """

    def __init__(
        self,
        config: FrontendConfig,
        app: ASGIApp,
        addresses: Sequence[ListenAddress],
        max_connections: int,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._addresses = addresses
        self._tls = tls
        if tls is not None:
            SSLProtocol.max_size = TLS_BUFFER_BYTES
        self._settings = Config(
            app,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
        )
        self._settings.load()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # our own layers log what is worth it
        self._state = ServerState()
        self._limits = ConnectionLimits(config, max_connections, metrics)
        self._make = partial(BoundedConnection, self._limits, self._settings, self._state, {})
        self._listening: list[socket.socket] = []
        """One socket for each address."""
        self._fault_log = FaultLog(f"http_port {config.http_port}: connections are taken again")
        self._opening: set[asyncio.Task[None]] = set()
        """Connections accepted and not open yet: with TLS, those in their handshake."""

    @property
    def num_connections(self) -> int:
        return len(self._state.connections) + len(self._opening)

    async def start(self) -> int:
        """Listen; the port. Raises `OSError` when the port cannot be opened."""
        port = self._config.http_port
        try:
            for address in self._addresses:
                self._listening.append(address.socket())
                port = _listen(self._listening[-1], address.at(port))
        except OSError:
            self._close_listening()
            raise
        for listening in self._listening:
            self._resume(listening)
        return port

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _close_listening(self) -> None:
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._fault_log.end()  # nobody waits any longer
                return
            except OSError as error:
                self._fault_log.begin(
                    f"http_port {self._config.http_port}: no connection can be taken: {error.strerror}"
                )
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume, listening)
                return
            self._admit(accepted)

    def _admit(self, accepted: socket.socket) -> None:
        """Open an accepted connection. The longest idle one makes room; where all are busy, the new one is refused."""
        most = self._limits.max_connections
        has_room = self.num_connections < most or self._limits.make_room()
        if not has_room and self.num_connections >= most + MAX_LINGERING:
            accepted.close()
            return
        accepted.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._open(accepted))
        self._opening.add(task)
        self._limits.idle[task] = task.cancel
        task.add_done_callback(self._opened)

    async def _open(self, accepted: socket.socket) -> None:
        seconds = self._config.header_seconds if self._tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError:
            accepted.close()  # it left, or its handshake failed or took too long

    def _opened(self, task: "asyncio.Task[None]") -> None:
        self._opening.discard(task)
        self._limits.idle.pop(task, None)

    async def close(self, grace_seconds: float) -> None:
        """Accept no more; close idle connections now, the others after their answer or when the grace is over."""
        if not self._listening:
            return
        self._close_listening()
        self._limits.is_closing = True
        for task in tuple(self._opening):
            task.cancel()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if tasks := tuple(self._state.tasks):
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tuple(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        for connection in tuple(self._state.connections):
            connection.transport.close()


def _listen(listening: socket.socket, target: tuple[str | int, ...]) -> int:
    """Listen on an address and port; the port."""
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(target)
    listening.listen(BACKLOG)
    # accepted sockets inherit all of it. A token must not wait for the acknowledgement of the one before it, and the
    # kernel, too, holds little for a reader that stands still.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        listening.setsockopt(socket.IPPROTO_TCP, option, value)
    port: int = listening.getsockname()[1]
    return port
