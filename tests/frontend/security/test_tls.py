"""TLS at both servers: what is spoken, and certificates that are asked of clients."""

import asyncio
import socket
import ssl
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

from quire.deploy.commands.target import unreached
from quire.proto.api import RequestError
from quire.proto.client import AsyncClient

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from certificates import Authority, Grpc, Http, files, server_tls, trusting
from parts.clock import GUARD


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
            writer.write(b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(main())


def test_a_command_that_did_not_reach_it_is_told_that_it_speaks_tls(serving, authority):
    pair = authority.sign("server")

    async def main():
        async with serving(wait=False, http_port=0, **files(pair)) as s:
            http = f"localhost:{s.server.http_port}"
            for target, door, tls, words in (
                (s.target, "gRPC", False, "it speaks TLS; add --tls-ca-file FILE"),
                (s.target, "gRPC", True, "its certificate is not accepted, or it asks for one; name who signed it"),
                (http, "gRPC", False, "that port speaks HTTPS and not gRPC; give the port of quire's gRPC API"),
                (http, "HTTP", False, "it speaks TLS; ask an engine without --ssl-certfile"),
            ):
                assert (await asyncio.to_thread(unreached, target, door, tls)).startswith(words)
        async with serving(wait=False) as s:
            assert (await asyncio.to_thread(unreached, s.target, "gRPC", True)) == (
                "it speaks gRPC without TLS; leave the --tls flags out"
            )
            assert await asyncio.to_thread(unreached, s.target) == ""

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


def test_a_handshake_that_goes_on_counts_and_makes_room(serving, authority):
    async def main():
        async with serving(wait=False, http_port=0, max_connections=4, **files(authority.sign("server"))) as s:
            http = s.server._http
            handshaking = [socket.create_connection(("127.0.0.1", s.server.http_port)) for _ in range(3)]
            await s.until(lambda: http.num_connections == 3)  # a quarter of four is gRPC's
            opening = asyncio.open_connection("127.0.0.1", s.server.http_port, ssl=trusting(authority))
            async with asyncio.timeout(GUARD):
                reader, writer = await opening
                writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await s.until(lambda: http.num_connections == 3)
            handshaking[0].settimeout(GUARD)
            assert handshaking[0].recv(1) == b""
            writer.close()
            for one in handshaking:
                one.close()

    asyncio.run(main())
