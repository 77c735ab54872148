"""The fetching child's dealings with a server, over real sockets: the child's code, in this process."""

import ipaddress
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from parts.clock import GUARD

from quire.frontend.media.fetch_child import DONE, LATE, REFUSED, FetchJob, FetchSetup, prepare
from quire.frontend.media.public_address import Address, is_public
from quire.frontend.media.web_address import WebAddress

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from certificates import Authority, files, server_tls
from web_server import Script, WebServer, page, sending

MOST = 1000
LOOPBACK = ipaddress.ip_address("127.0.0.1")
IMAGE = b"\x89PNG of pixels"
PLAIN = b"HTTP/1.1 200 OK\r\n\r\n"


def fetch(
    server: WebServer,
    url: str = "http://images.example/a.png?b=c",
    seconds: float = GUARD,
    ca_file: str | None = None,
    resolve: Callable[[str], list[Address]] = lambda host: [LOOPBACK],
    **judge: Callable[[Address], bool],
) -> bytes:
    """The child's answer to a URL, at the server's port; without `is_public` every address counts as public."""
    judge = judge or {"is_public": lambda address: True}
    answer = prepare(msgspec.msgpack.encode(FetchSetup(MOST, ca_file, None)), resolve, **judge)
    address = msgspec.structs.replace(WebAddress.parse(url), port=server.port)
    return answer(msgspec.msgpack.encode(FetchJob(address, seconds)))


def refusal(script: Script) -> str:
    with WebServer(script) as server:
        answer = fetch(server)
    assert answer[:1] == REFUSED
    return answer[1:].decode()


@pytest.mark.parametrize(
    "script",
    [
        page(IMAGE),
        page(IMAGE, Content_Encoding="identity"),
        page(IMAGE + b"more", content_length=str(len(IMAGE))),
        page(b"5;x=y\r\n" + IMAGE[:5] + b"\r\n9\r\n" + IMAGE[5:] + b"\r\n0\r\n\r\n", transfer_encoding="chunked"),
        sending(PLAIN, IMAGE[:5], IMAGE[5:]),
        sending(b"HTTP/1.1 100 Continue\r\n\r\n", PLAIN, IMAGE),
    ],
    ids=["length", "identity", "more than announced", "chunked", "until the end", "after 100"],
)
def test_the_body_of_a_plain_answer_comes_back(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with WebServer(script) as server:
        assert fetch(server) == DONE + IMAGE
    (head,) = server.heads
    assert head.startswith("GET /a.png?b=c HTTP/1.1\r\n")
    assert f"\r\nHost: images.example:{server.port}\r\n" in head
    assert "\r\nAccept-Encoding: identity\r\n" in head
    assert "\r\nConnection: close\r\n" in head


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_named_and_not_followed(status: int) -> None:
    with WebServer(page(IMAGE)) as other:
        script = page(b"", f"{status} Moved", Location=f"http://127.0.0.1:{other.port}/secret")
        why = refusal(script)
        assert why == f"its host answers {status}, a redirect, which is not followed; give the address it leads to"
        assert other.num_connections == 0


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (page(b"gone", "404 Not Found"), "answers 404 instead of 200"),
        (page(IMAGE, "206 Partial Content"), "answers 206 instead of 200"),
        (page(b"", "204 No Content"), "answers 204 instead of 200"),
        (page(IMAGE, Content_Encoding="gzip"), "sends another Content-Encoding than identity"),
        (page(IMAGE, transfer_encoding="gzip, chunked"), "sends another Transfer-Encoding than chunked"),
        (page(b"", content_length=str(MOST + 1)), "has 1001 bytes; at most 1000 are allowed"),
        (page(IMAGE, content_length="20"), "ended 6 bytes before the end it had announced"),
        (page(b""), "is empty"),
        (page(b"a\r\nshort", transfer_encoding="chunked"), "does not answer as HTTP wants it"),
        (page(b"-5\r\nshort", transfer_encoding="chunked"), "does not answer as HTTP wants it"),
        (page(b"x\r\n", transfer_encoding="chunked"), "does not answer as HTTP wants it"),
        (sending(b"SSH-2.0-server\r\n"), "does not answer as HTTP wants it"),
        (sending(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200), "does not answer as HTTP wants it"),
        (sending(b"HTTP/1.1 200 " + bytes(100_000)), "does not answer as HTTP wants it"),
    ],
)
def test_any_other_answer_is_refused(script: Script, why: str) -> None:
    assert why in refusal(script)


def test_a_server_that_leaves_at_once_and_one_that_is_not_there_are_refused() -> None:
    why = refusal(sending())
    assert "does not answer as HTTP wants it" in why or "cannot be reached" in why
    with WebServer(page(IMAGE)) as server:
        pass
    assert fetch(server) == REFUSED + b"its host cannot be reached: Connection refused"


@pytest.mark.parametrize("head", [PLAIN, PLAIN[:-2] + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_a_body_without_end_is_left_when_it_is_too_large(head: bytes) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(bytes(100_000) if head == PLAIN else b"1000\r\n" + bytes(0x1000) + b"\r\n")

    with WebServer(script) as server:
        assert fetch(server) == REFUSED + b"has more than 1000 bytes; send a smaller one"
        assert server.ended.wait(GUARD)


def drop_by_drop(begin: bytes, drop: bytes) -> Script:
    def script(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(drop)
            time.sleep(0.01)

    return script


@pytest.mark.parametrize(
    "script",
    [drop_by_drop(b"", b"H"), drop_by_drop(b"HTTP/1.1 200 OK\r\n", b"a"), drop_by_drop(PLAIN, b"x")],
    ids=["status", "headers", "body"],
)
def test_a_server_that_sends_drop_by_drop_does_not_get_more_time(script: Script) -> None:
    with WebServer(script) as server:
        assert fetch(server, seconds=0.3) == LATE
        assert server.ended.wait(GUARD)


def test_a_server_that_never_answers_or_never_greets_is_left() -> None:
    with WebServer(lambda connection: time.sleep(GUARD)) as server:
        assert fetch(server, seconds=0.2) == LATE
        assert fetch(server, "https://localhost/", seconds=0.2) == LATE


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["93.184.215.14", "127.0.0.1"],
        ["2606:4700::1111", "10.0.0.1"],
        ["64:ff9b::7f00:1"],
    ],
)
def test_a_name_with_any_address_that_is_not_public_is_refused_before_anything_is_sent(addresses: list[str]) -> None:
    names: list[str] = []

    def resolve(host: str) -> list[Address]:
        names.append(host)
        return [ipaddress.ip_address(address) for address in (addresses if len(names) == 1 else ["93.184.215.14"])]

    with WebServer(page(IMAGE)) as server:
        answer = fetch(server, resolve=resolve, is_public=is_public)
        assert answer[1:].decode().startswith("its host has an address that is not public")
        assert names == ["images.example"]
        assert server.num_connections == 0


def test_a_name_is_resolved_once_and_its_address_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that says something else the second time finds nobody who asks."""
    names: list[str] = []
    judged: list[Address] = []
    asked: list[str] = []
    getaddrinfo = socket.getaddrinfo

    def resolve(host: str) -> list[Address]:
        names.append(host)
        return [LOOPBACK]

    def recorded(host: str, *args: object, **kwargs: object) -> object:
        asked.append(host)
        return getaddrinfo(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", recorded)
    with WebServer(page(IMAGE)) as server:
        assert fetch(server, resolve=resolve, is_public=lambda address: not judged.append(address)) == DONE + IMAGE
    assert names == ["images.example"]
    assert judged == [LOOPBACK]
    assert set(asked) <= {"127.0.0.1"}


def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    addresses = [ipaddress.ip_address(one) for one in ("127.0.0.2", "::1", "127.0.0.1")]
    with WebServer(page(IMAGE)) as server:
        assert fetch(server, resolve=lambda host: addresses) == DONE + IMAGE


def test_a_name_without_an_address_is_refused() -> None:
    def resolve(host: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with WebServer(page(IMAGE)) as server:
        assert fetch(server, resolve=resolve) == REFUSED + b"its host cannot be reached: Name or service not known"


def test_a_certificate_must_be_of_the_name_and_of_an_authority(authority: Authority, tmp_path: Path) -> None:
    context = server_tls(**files(authority.sign("server"))).http_ssl_context()
    own, other = str(authority.file), str(Authority(tmp_path, "other").file)
    with WebServer(page(IMAGE), context) as server:
        assert fetch(server, "https://localhost/a.png", ca_file=own) == DONE + IMAGE
        assert f"\r\nHost: localhost:{server.port}\r\n" in server.heads[0]
        assert fetch(server, "https://127.0.0.1/a.png", ca_file=own) == DONE + IMAGE
        why = fetch(server, "https://images.example/a.png", ca_file=own)
        assert why.startswith(REFUSED + b"its host shows no certificate of its name: Hostname mismatch")
        why = fetch(server, "https://localhost/a.png", ca_file=other)
        assert why.startswith(REFUSED + b"its host shows no certificate of its name")
        assert len(server.heads) == 2, "nothing is asked of a server that is not who it should be"
