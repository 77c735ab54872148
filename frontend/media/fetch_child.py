"""The child process that fetches images: `python -m quire.frontend.media.fetch_child`, in a sandbox.

A name is resolved once, all its addresses must be public, and one of them is connected to under that name: nobody
can lead it elsewhere by another answer of the resolver, a redirect or a proxy.
"""

import io
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from typing import Any

import msgspec

from quire.frontend.media.public_address import Address, is_public
from quire.frontend.media.web_address import WebAddress
from quire.frontend.sandbox.child import serve

PIECE = 64 << 10
DONE, REFUSED, LATE = b"\0", b"\1", b"\2"
"""First byte of an answer; the bytes, the reason or nothing follows."""


class FetchSetup(msgspec.Struct, frozen=True):
    """The most bytes of one answer, and where the certificates of authorities lie; None: there are none."""

    max_bytes: int
    ca_file: str | None
    ca_folder: str | None


class FetchJob(msgspec.Struct, frozen=True):
    """One address, and the time for all of it."""

    address: WebAddress
    seconds: float


class _Refused(Exception):
    """An answer, or a name, that the client must replace; the text says why."""


def resolve(host: str) -> Sequence[Address]:
    """The addresses of a name, in the system's order."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(one[4][0]).partition("%")[0]) for one in found))


def prepare(
    setup: bytes,
    resolve: Callable[[str], Sequence[Address]] = resolve,
    is_public: Callable[[Address], bool] = is_public,
) -> Callable[[bytes], bytes]:
    """`setup`: `FetchSetup`. What it returns takes a `FetchJob`; both are msgpack."""
    wanted = msgspec.msgpack.decode(setup, type=FetchSetup)
    decode = msgspec.msgpack.Decoder(FetchJob).decode
    context = ssl.create_default_context(cafile=wanted.ca_file, capath=wanted.ca_folder)

    def answer(payload: bytes) -> bytes:
        job = decode(payload)
        deadline = time.monotonic() + job.seconds
        try:
            addresses = resolve(job.address.host)
            if not all(map(is_public, addresses)):
                raise _Refused("its host has an address that is not public; send the bytes as a data: URL")
            with _connect(addresses, job.address.port, deadline) as plain:
                if job.address.scheme == "http":
                    return _get(plain, job.address, deadline, wanted.max_bytes)
                plain.settimeout(_left(deadline))
                with context.wrap_socket(plain, server_hostname=job.address.host) as encrypted:
                    return _get(encrypted, job.address, deadline, wanted.max_bytes)
        except TimeoutError:
            return LATE
        except _Refused as error:
            why = str(error)
        except ssl.SSLCertVerificationError as error:
            why = f"its host shows no certificate of its name: {error.verify_message}"
        except OSError as error:
            why = f"its host cannot be reached: {error.strerror or type(error).__name__}"
        except (HTTPException, ValueError):
            why = "its host does not answer as HTTP wants it"
        return REFUSED + why.encode()

    return answer


def _left(deadline: float) -> float:
    """Seconds until the deadline. Raises `TimeoutError`."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connect(addresses: Sequence[Address], port: int, deadline: float) -> socket.socket:
    """A connection to the first address that takes it; each may use its part of the time."""
    failure = OSError("no address")
    for index, address in enumerate(addresses):
        try:
            return socket.create_connection((str(address), port), _left(deadline) / (len(addresses) - index))
        except OSError as error:
            failure = error
    raise failure


def _get(connection: socket.socket, address: WebAddress, deadline: float, max_bytes: int) -> bytes:
    """`DONE` and the body."""
    connection.settimeout(_left(deadline))
    connection.sendall(
        f"GET {address.target} HTTP/1.1\r\nHost: {address.authority}\r\nUser-Agent: quire\r\nAccept: image/*, */*\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode()
    )
    response = HTTPResponse(_InTime(connection, deadline))  # type: ignore[arg-type]  # it wants `makefile` alone
    response.begin()
    _check(response, max_bytes)
    body = bytearray(DONE)
    for piece in iter(partial(response.read, PIECE), b""):
        body += piece
        if len(body) - len(DONE) > max_bytes:
            raise _Refused(f"has more than {max_bytes} bytes; send a smaller one")
    if response.length:
        raise _Refused(f"its host ended {response.length} bytes before the end it had announced")
    if len(body) == len(DONE):
        raise _Refused("is empty")
    return bytes(body)


def _check(response: HTTPResponse, max_bytes: int) -> None:
    if 300 <= response.status < 400:
        message = f"its host answers {response.status}, a redirect, which is not followed; give the address it leads to"
        raise _Refused(message)
    if response.status != 200:
        raise _Refused(f"its host answers {response.status} instead of 200")
    for name, plain in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
        if response.getheader(name, plain).strip().lower() != plain:
            raise _Refused(f"its host sends another {name} than {plain}")
    if response.length is not None and response.length > max_bytes:
        raise _Refused(f"has {response.length} bytes; at most {max_bytes} are allowed")


class _InTime(io.RawIOBase):
    """Bytes of a connection, all of them before one deadline: a socket's own time begins anew with each piece."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, PIECE)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._deadline))
        return self._connection.recv_into(buffer)


if __name__ == "__main__":
    serve(prepare)
