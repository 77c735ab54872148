"""TLS for both servers, from files that may be replaced while they run (RFC 8446; mutual TLS with a CA for clients).

A chain is used only after it has passed a handshake with itself in memory, which proves that it can be read, belongs
to its key and is valid today. Whoever connects next gets the newest good one; open connections keep theirs.
"""

import logging
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from quire.frontend.config import FrontendConfig
from quire.frontend.security.file_watch import Clock, WatchedFiles
from quire.proto.process.flags import in_flags

HTTP_PROTOCOLS = ["http/1.1"]

log = logging.getLogger("quire.frontend")


class TlsError(ValueError):
    """Certificate files that cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Contents of the files, PEM, proven to work."""

    chain: bytes
    key: bytes
    client_ca: bytes
    """Empty: clients need no certificate."""

    def context(self) -> ssl.SSLContext:
        """The context of the HTTP server."""
        context = _server_context(self.chain, self.key)
        context.set_alpn_protocols(HTTP_PROTOCOLS)
        if self.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.client_ca.decode("ascii"))
            # a resumed session shows no certificate: whoever had one once would come in for ever, whatever the CA now
            # is. TLS 1.3 resumes by tickets only, which are not given out; older versions resume otherwise, too.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        return context

    def grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.client_ca or None)


class ServerTls:
    """The certificates of one frontend. Each server watches the files itself, for they ask from different threads."""

    def __init__(self, config: FrontendConfig, clock: Clock = time.monotonic) -> None:
        """Raises `TlsError`."""
        self._config = config
        self._clock = clock
        self._first = read(config)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        files = _ReloadedCertificates(self._config, self._first, self._clock)

        def newest() -> grpc.ServerCertificateConfiguration | None:
            """The newest configuration, asked for at each handshake; None: as before."""
            return files.certificates.grpc_configuration() if files.renewed() else None

        return grpc.dynamic_ssl_server_credentials(
            self._first.grpc_configuration(),
            newest,  # type: ignore[arg-type]  # the stubs forget that None is an answer
            require_client_authentication=bool(self._first.client_ca),
        )

    def http_ssl_context(self) -> ssl.SSLContext:
        files = _ReloadedCertificates(self._config, self._first, self._clock)
        first = current = self._first.context()

        def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            """Set the newest context; called at each handshake, also when the client names no server."""
            nonlocal current
            if files.renewed():
                current = files.certificates.context()
            connection.context = current

        first.sni_callback = newest
        return first


class _ReloadedCertificates:
    """The newest certificates that works."""

    def __init__(self, config: FrontendConfig, certificates: Certificates, clock: Clock) -> None:
        self.certificates = certificates
        self._config = config
        self._watched = WatchedFiles([config.tls_cert_file, config.tls_key_file, config.tls_client_ca_file], clock)

    def renewed(self) -> bool:
        """True where `certificates` is another one than at the last call."""
        if not self._watched.changed():
            return False
        try:
            certificates = read(self._config)
        except TlsError as error:
            log.error("%s; the certificate of before stays in use", in_flags(str(error), self._config.flags))
            return False
        if certificates == self.certificates:
            return False
        self.certificates = certificates
        log.info(in_flags("tls_cert_file: %s: read again", self._config.flags), self._config.tls_cert_file)
        return True


def read(config: FrontendConfig) -> Certificates:
    """Raises `TlsError`."""
    chain = _contents("tls_cert_file", config.tls_cert_file)
    key = _contents("tls_key_file", config.tls_key_file)
    client_ca = _contents("tls_client_ca_file", config.tls_client_ca_file) if config.tls_client_ca_file else b""
    if b"ENCRYPTED" in key:
        raise TlsError(f"tls_key_file: {config.tls_key_file}: is encrypted; give a key without a passphrase")
    try:
        context = _server_context(chain, key)
    except ssl.SSLError as error:
        raise TlsError(
            f"tls_cert_file: {config.tls_cert_file}: no PEM chain that belongs to tls_key_file {config.tls_key_file} "
            f"({error.reason or 'unreadable'})"
        ) from error
    try:
        _shake_hands(context, chain)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or "unreadable"
        raise TlsError(f"tls_cert_file: {config.tls_cert_file}: cannot be used: {reason}") from error
    if client_ca:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=client_ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(f"tls_client_ca_file: {config.tls_client_ca_file}: holds no PEM certificate") from error
    return Certificates(chain, key, client_ca)


def _contents(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{field}: {path}: {error.strerror}") from error


def _server_context(chain: bytes, key: bytes) -> ssl.SSLContext:
    """A context from bytes, by a file in memory: a pair read once cannot be replaced half way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with open(os.memfd_create("tls", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(key + b"\n" + chain)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
    return context


def _shake_hands(server: ssl.SSLContext, chain: bytes) -> None:
    """A client that trusts exactly this certificate connects. Raises `ssl.SSLError` saying what a client would."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cadata=chain.decode("ascii"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        trusting.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
