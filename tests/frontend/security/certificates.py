"""Certificates made on the spot, and clients that trust them."""

import asyncio
import datetime
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from parts.clock import GUARD

from quire.frontend.config import FrontendConfig
from quire.frontend.security.tls import ServerTls

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
            return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=GUARD)).status

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
