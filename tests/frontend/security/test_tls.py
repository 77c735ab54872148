"""TLS at both servers: certificates that are good, bad, replaced while it runs, and asked of clients."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.frontend.config import FrontendConfig
from quire.frontend.security.tls import ServerTls, TlsError
from quire.proto.api import RequestError
from quire.proto.client import AsyncClient

PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Pair:
    """Files of one certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs for 127.0.0.1 and localhost. `serial_number` tells certificates apart."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(self._name, self._key, days=1)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(PEM))

    def sign(self, name: str, serial: int = 1, days: int = 1) -> Pair:
        """Written over what was there; `days` below 0: has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        made = self._builder(subject, key, days).serial_number(serial)
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.key.write_bytes(
            key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        )
        pair.cert.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key())
        builder = builder.not_valid_before(now - datetime.timedelta(days=2))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        return builder if subject != self._name else builder.serial_number(x509.random_serial_number())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(pair: Pair, client_ca: Path | None = None) -> dict[str, str]:
    return {
        "tls_cert_file": str(pair.cert),
        "tls_key_file": str(pair.key),
        "tls_client_ca_file": str(client_ca) if client_ca else "",
    }


def server_tls(clock: Callable[[], float] = lambda: 0.0, **paths: str) -> ServerTls:
    config = FrontendConfig(scheduler_address="ipc:///x", model="/m", served_model_names=("m",), **paths)
    return ServerTls(config, clock)


def trusting(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


class Http:
    """An HTTP server's port without the server: it greets whoever gets through."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def __aenter__(self) -> "Http":
        async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            await writer.drain()
            writer.close()

        self._server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exit: object) -> None:
        self._server.close()

    async def serial(self, context: ssl.SSLContext) -> int:
        """Of the certificate shown; raises what the handshake raises."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            assert await reader.read() == b"hello"
            return int(writer.get_extra_info("peercert")["serialNumber"], 16)
        finally:
            writer.close()


class Grpc:
    """A gRPC port that answers health."""

    def __init__(self, credentials: grpc.ServerCredentials) -> None:
        self._server = grpc.aio.server()
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)

    async def __aenter__(self) -> "Grpc":
        class Healthy(health_pb2_grpc.HealthServicer):
            async def Check(self, request, context):
                return health_pb2.HealthCheckResponse(status=1)

        health_pb2_grpc.add_HealthServicer_to_server(Healthy(), self._server)
        await self._server.start()
        return self

    async def __aexit__(self, *exit: object) -> None:
        await self._server.stop(0)

    async def call(self, authority: Authority, own: Pair | None = None) -> int:
        credentials = grpc.ssl_channel_credentials(
            authority.file.read_bytes(), *((own.key.read_bytes(), own.cert.read_bytes()) if own else ())
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)).status

    async def serial(self) -> int:
        """Of the certificate shown to a client that does not look at it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(shown).serial_number
        finally:
            writer.close()


def test_a_whole_server_speaks_tls_only(serving, authority):
    pair = authority.sign("server")

    async def main():
        async with serving(wait=False, http_port=0, **files(pair)) as s:
            async with AsyncClient(s.target, tls_ca_file=str(authority.file)) as client:
                assert (await client.server_info()).model_names == ("tiny",)
            with pytest.raises(RequestError) as caught:
                await s.client.server_info()
            assert caught.value.status == "UNAVAILABLE"
            port = s.server.http_port
            reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting(authority))
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_old_versions_of_the_protocol_are_refused_and_http_1_is_agreed_on(authority):
    pair = authority.sign("server")

    async def main():
        async with Http(server_tls(**files(pair)).http_ssl_context()) as server:
            old = trusting(authority)
            old.minimum_version, old.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await server.serial(old)
            new = trusting(authority)
            new.set_alpn_protocols(["h2", "http/1.1"])
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=new)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            writer.close()

    asyncio.run(main())


def test_both_doors_ask_for_a_certificate_of_the_client_ca(authority, tmp_path):
    server, client = authority.sign("server"), authority.sign("client")
    stranger = Authority(tmp_path, "elsewhere").sign("stranger")
    tls = server_tls(**files(server, authority.file))

    async def main():
        async with Http(tls.http_ssl_context()) as http, Grpc(tls.grpc_credentials()) as rpc:
            assert await http.serial(trusting(authority, client)) == 1
            assert await rpc.call(authority, client) == 1
            for wrong in (None, stranger):
                with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                    await http.serial(trusting(authority, wrong))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await rpc.call(authority, wrong)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(main())


def test_new_files_are_shown_to_the_next_connection_at_both_doors(authority):
    now = 0.0
    pair = authority.sign("server", serial=11)
    tls = server_tls(lambda: now, **files(pair))

    async def main():
        nonlocal now
        async with Http(tls.http_ssl_context()) as http, Grpc(tls.grpc_credentials()) as rpc:
            assert [await http.serial(trusting(authority)), await rpc.serial()] == [11, 11]
            authority.sign("server", serial=12)
            now = 2.0
            assert [await http.serial(trusting(authority)), await rpc.serial()] == [12, 12]
            authority.sign("server", serial=13)
            now = 4.0
            assert [await rpc.serial(), await http.serial(trusting(authority))] == [13, 13]
            assert await rpc.call(authority) == 1

    asyncio.run(main())


def resumable(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSession | None:
    """What a client may come back with after it was greeted, if the server gives out anything."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
    ):
        assert connection.recv(5) == b"hello"
        return connection.session


def test_a_new_client_ca_replaces_the_old_one_at_both_doors(authority, tmp_path):
    now = 0.0
    server, client = authority.sign("server"), authority.sign("client")
    accepted = tmp_path / "accepted.pem"
    accepted.write_bytes(authority.file.read_bytes())
    elsewhere = Authority(tmp_path, "elsewhere")
    stranger = elsewhere.sign("stranger")
    tls = server_tls(lambda: now, **files(server, accepted))

    async def main():
        nonlocal now
        async with Http(tls.http_ssl_context()) as http, Grpc(tls.grpc_credentials()) as rpc:
            assert await http.serial(trusting(authority, client)) == 1
            again = trusting(authority, client)
            session = await asyncio.to_thread(resumable, http.port, again)
            accepted.write_bytes(elsewhere.file.read_bytes())
            now = 2.0
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await asyncio.to_thread(resumable, http.port, again, session)
            assert await http.serial(trusting(authority, stranger)) == 1
            assert await rpc.call(authority, stranger) == 1
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await http.serial(trusting(authority, client))
            with pytest.raises(grpc.aio.AioRpcError):
                await rpc.call(authority, client)

    asyncio.run(main())


def spoil(how: str, pair: Pair, authority: Authority) -> None:
    match how:
        case "no certificate":
            pair.cert.write_text("hello")
        case "no key":
            pair.key.write_text("hello")
        case "another key":
            pair.key.write_bytes(authority.sign("other").key.read_bytes())
        case "expired":
            made = authority.sign("old", days=-1)
            pair.cert.write_bytes(made.cert.read_bytes())
            pair.key.write_bytes(made.key.read_bytes())
        case "missing":
            pair.cert.unlink()
        case "encrypted":
            key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
            hidden = serialization.BestAvailableEncryption(b"secret")
            form = serialization.PrivateFormat.PKCS8
            pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, hidden))


BAD = {
    "no certificate": "server.pem",
    "no key": "server.key",
    "another key": "KEY_VALUES_MISMATCH",
    "expired": "certificate has expired",
    "missing": "server.pem: No such file",
    "encrypted": "server.key: is encrypted",
}


@pytest.mark.parametrize("how", BAD)
def test_bad_files_end_the_start_with_one_line_naming_the_file(authority, how):
    pair = authority.sign("server")
    spoil(how, pair, authority)
    with pytest.raises(TlsError, match=BAD[how]) as caught:
        server_tls(**files(pair))
    assert "\n" not in str(caught.value)


def test_a_client_ca_that_holds_no_certificate_is_named(authority, tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(TlsError, match=r"tls_client_ca_file: .*empty\.pem: holds no PEM certificate"):
        server_tls(**files(authority.sign("server"), tmp_path / "empty.pem"))


@pytest.mark.parametrize("how", BAD)
def test_bad_new_files_leave_the_old_certificate_in_use(authority, caplog, how):
    now = 0.0
    pair = authority.sign("server", serial=11)
    tls = server_tls(lambda: now, **files(pair))

    async def main():
        nonlocal now
        async with Http(tls.http_ssl_context()) as http, Grpc(tls.grpc_credentials()) as rpc:
            spoil(how, pair, authority)
            now = 2.0
            assert [await http.serial(trusting(authority)), await rpc.serial()] == [11, 11]
            assert caplog.text.count("the certificate of before stays in use") == 2  # once a server, not once a client
            authority.sign("server", serial=12)
            now = 4.0
            assert [await http.serial(trusting(authority)), await rpc.serial()] == [12, 12]

    asyncio.run(main())


def test_a_handshake_that_goes_on_counts_and_makes_room(serving, authority):
    async def main():
        async with serving(wait=False, http_port=0, max_connections=4, **files(authority.sign("server"))) as s:
            http = s.server._http
            handshaking = [socket.create_connection(("127.0.0.1", s.server.http_port)) for _ in range(3)]
            await s.until(lambda: http.num_connections == 3)  # a quarter of four is gRPC's
            opening = asyncio.open_connection("127.0.0.1", s.server.http_port, ssl=trusting(authority))
            async with asyncio.timeout(10):
                reader, writer = await opening
                writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await s.until(lambda: http.num_connections == 3)
            handshaking[0].settimeout(10)
            assert handshaking[0].recv(1) == b""
            writer.close()
            for one in handshaking:
                one.close()

    asyncio.run(main())
