"""HOST:PORT of a server: what may be typed, and what is found there when the server that was meant does not answer."""

import socket
import ssl
from typing import Literal

from quire.deploy.flags.arguments import UsageError

Door = Literal["gRPC", "HTTP"]
PORTS: dict[Door, int] = {"gRPC": 50051, "HTTP": 8000}
PROBE_SECONDS = 3.0
_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SETTINGS = 4
"""Type of the first frame that a server of HTTP/2 sends."""
_READY = "its `ready` line names it"


def checked(target: str, door: Door = "gRPC") -> str:
    """The target as it was given. Raises `UsageError` for what is no HOST:PORT."""
    host, _, port = target.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65_536
    if host and is_port and not target.startswith(("http://", "https://", "grpc://")):
        return target
    what = f"the URL {target!r}" if "://" in target else repr(target)
    over_tls = ", with --tls-ca-file for a server with TLS" if target.startswith("https://") and door == "gRPC" else ""
    raise UsageError(
        f"--target: must be HOST:PORT of the {door} API with a port in [1, 65535], like localhost:{PORTS[door]}"
        f"{over_tls}; got {what}"
    )


def unreached(target: str, door: Door = "gRPC", tls: bool = False) -> str:
    """One sentence about what is there instead of a server of this door, and what to give; empty where it is there.

    `tls`: the server was expected to speak TLS.
    """
    host, port = _split(target)
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as connection:
            connection.settimeout(PROBE_SECONDS)
            first = _first_bytes(connection)
    except (socket.gaierror, UnicodeError) as error:  # the second for what can be no name
        why = error.strerror if isinstance(error, OSError) else "it is none"
        return f"no address is known for the name {host!r} ({why}); correct it, or give an IP address"
    except ConnectionRefusedError:
        return f"nothing listens there; start `quire serve`, or give its port for {door}: {_READY}"
    except TimeoutError:
        return (
            f"the host does not answer within {PROBE_SECONDS:g} s; is it up, and does a firewall let port {port} pass?"
        )
    except OSError as error:
        return f"it cannot be reached: {error.strerror or error}; correct the host"
    other = f"give the port of quire's {door} API: {_READY}"
    if first is None:
        return "it takes connections and says nothing: the server hangs, or is not quire; look at its log"
    if first.startswith(b"HTTP/1."):
        return "" if door == "HTTP" else f"that port speaks HTTP and not gRPC; {other}"
    if first[3:4] == bytes([_SETTINGS]):
        if door == "HTTP":
            return f"that port speaks gRPC and not HTTP/1.1; {other}"
        return "it speaks gRPC without TLS; leave the --tls flags out" if tls else ""
    return _over_tls(host, port, door, tls, other)


def _over_tls(host: str, port: int, door: Door, tls: bool, other: str) -> str:
    """The same for a server that had no word for a plain connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent: only its language is asked
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((host, port), PROBE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host) as wrapped,
        ):
            speaks_grpc = wrapped.selected_alpn_protocol() == "h2"
    except OSError:  # of which TLS's own errors are
        return f"it closed the connection: it is no server of quire's {door} API; {other}"
    if door == "gRPC" and not speaks_grpc:
        return f"that port speaks HTTPS and not gRPC; {other}"
    if door == "HTTP":
        return "it speaks TLS; ask an engine without --ssl-certfile"
    if tls:
        return (
            "its certificate is not accepted, or it asks for one; name who signed it with --tls-ca-file, yours with "
            "--tls-cert-file and --tls-key-file, and the host as the certificate does"
        )
    return "it speaks TLS; add --tls-ca-file FILE with who signed its certificate, or --tls"


def _first_bytes(connection: socket.socket) -> bytes | None:
    """The begin of a server's answer to a plain connection; empty where it closes it, None where there is none."""
    try:
        connection.sendall(_REQUEST)
        return connection.recv(64)
    except TimeoutError:
        return None
    except OSError:  # a reset
        return b""


def _split(target: str) -> tuple[str, int]:
    """Host and port, also of gRPC's own spellings: `dns:///host:1`, `[::1]:1`."""
    host, _, port = target.rpartition(":")
    host = host.rpartition("/")[2].removeprefix("ipv4:").removeprefix("ipv6:").removeprefix("dns:")
    return host.strip("[]"), int(port)
