"""A server on 127.0.0.1 that answers as a script says, byte by byte where it wants to."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

Script = Callable[[socket.socket], None]


class WebServer:
    """Each connection gets the script in a thread of its own, after the head of its request was read."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.heads: list[str] = []
        """Heads of the requests that came."""
        self.num_connections = 0
        self.ended = threading.Event()
        """Set when a client left before the script's end."""
        self._script = script
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "WebServer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exit: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (piece := connection.recv(4096)):
                    head += piece
                self.heads.append(head.decode("latin-1"))
                try:
                    self._script(connection)
                except OSError:
                    self.ended.set()


def sending(*pieces: bytes) -> Script:
    """The pieces, then the end of the connection."""

    def script(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return script


def page(body: bytes, status: str = "200 OK", **headers: str) -> Script:
    """A whole answer; `content_type` is the header Content-Type."""
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if "content_length" not in headers and "transfer_encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return sending(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
