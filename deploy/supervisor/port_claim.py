"""A public port, claimed before anything starts and kept for the engine's life.

Frontends share a port through SO_REUSEPORT, with which the kernel would also let a second engine in and spread clients
over both. So the launcher binds it first, alone, and only then opens it to its own frontends; it never listens.
"""

import contextlib
import socket

from quire.deploy.flags.arguments import UsageError
from quire.proto.process.addresses import ListenAddress, listen_addresses


class PortClaim:
    """`number` is the port that was asked for, or for 0 a free one. Raises `UsageError` when it is taken."""

    def __init__(self, host: str, port: int, flag: str = "--grpc-port") -> None:
        self.number = port
        self._claims = contextlib.ExitStack()
        try:
            for address in listen_addresses(host):
                self._claim(address)
        except OSError as error:
            self.close()
            raise UsageError(f"--host {host} {flag} {port}: {error.strerror or error}; name another") from error

    def _claim(self, address: ListenAddress) -> None:
        claim = self._claims.enter_context(address.socket())
        target = address.at(self.number)
        try:
            claim.bind(target)
        except OSError:
            # once more, over connections of an earlier engine that only wait to be forgotten; a listener still refuses
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            claim.bind(target)
            claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.number = claim.getsockname()[1]

    def close(self) -> None:
        self._claims.close()
