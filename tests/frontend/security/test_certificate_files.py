"""Certificate files: bad ones end the start, new ones replace the old, at both doors."""

import asyncio
import socket
import ssl
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import serialization

from quire.frontend.security.tls import TlsError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from certificates import Authority, Grpc, Http, Pair, files, server_tls, trusting


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
