"""Opens the HTTP port on the frontend's own loop and closes it in order: uvicorn's protocol, none of its server.

Several frontends listen on one port (SO_REUSEPORT), as the gRPC server does.
"""

import asyncio
import logging
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from functools import partial

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from quire.frontend.config import FrontendConfig
from quire.frontend.http.connection import UNSENT_BYTES, BoundedConnection, Bounds

MAX_CONNECTIONS = 16_384
SPARE_DESCRIPTORS = 256
"""Left for gRPC, the scheduler and files."""
BACKLOG = 1024
TLS_BUFFER_BYTES = 64 << 10
"""asyncio's TLS holds a buffer per connection, by default four times as large: too much for thousands of idle ones."""
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 2, socket.TCP_USER_TIMEOUT: 80_000}
"""A client whose machine or network is gone without a word is noticed within 80 s, as over gRPC."""
TCP_NOTSENT_LOWAT = 25
"""Linux's number; the module `socket` of Python 3.11 has no name for it."""


class HttpListener:
    """`start`, then `close` once nothing is open any more."""

    def __init__(self, config: FrontendConfig, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        self._config = config
        self._tls = tls
        if tls is not None:
            SSLProtocol.max_size = TLS_BUFFER_BYTES
        self._settings = Config(
            app, http=BoundedConnection, ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, server_header=False, date_header=False, proxy_headers=False,
        )  # fmt: skip
        self._settings.load()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # our own layers log what is worth it
        self._state = ServerState()
        self._bounds = Bounds(config, _most_connections())
        self._server: asyncio.Server | None = None

    @property
    def num_connections(self) -> int:
        return len(self._state.connections)

    async def start(self) -> int:
        """Listen; the real port. Raises `OSError` when the port cannot be opened."""
        listening = _listen(self._config.host, self._config.http_port)
        make = partial(BoundedConnection, self._bounds, self._settings, self._state, {})
        self._server = await asyncio.get_running_loop().create_server(
            make, sock=listening, ssl=self._tls, backlog=BACKLOG,
            ssl_handshake_timeout=self._config.header_seconds if self._tls is not None else None,
        )  # fmt: skip
        port: int = listening.getsockname()[1]
        return port

    async def close(self, grace_seconds: float) -> None:
        """Take no connection more; close idle ones now, the others after their answer or when the grace is over."""
        if self._server is None:
            return
        self._server.close()
        self._bounds.is_closing = True
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if tasks := tuple(self._state.tasks):
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tuple(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
        for connection in tuple(self._state.connections):
            connection.transport.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = host == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True, dualstack_ipv6=dual)
    # accepted sockets inherit all of it. A token must not wait for the acknowledgement of the one before it, and the
    # kernel, too, holds little for a reader that stands still.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        listening.setsockopt(socket.IPPROTO_TCP, option, value)
    return listening


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, soft - SPARE_DESCRIPTORS))
    )
