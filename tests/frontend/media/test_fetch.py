"""Fetches by children: few at once, in order, and what happens to one costs nobody else anything."""

import asyncio
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil
import pytest
from parts.clock import GUARD

from quire.frontend.media import fetch
from quire.frontend.media.fetch import WebFetcher
from quire.frontend.media.refused import MediaRefused
from quire.proto.api import RequestError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from certificates import Authority, files, server_tls
from web_server import WebServer, page

MOST = 4 << 20
IMAGE = b"\x89PNG of pixels"
Work = Callable[[WebFetcher], Awaitable[None]]


def fetching(
    work: Work, domains: Sequence[str], seconds: float = GUARD, num_fetches: int = 2, most: int = MOST
) -> None:
    async def main() -> None:
        fetcher = WebFetcher(domains, most, seconds, num_fetches)
        try:
            await work(fetcher)
        finally:
            await fetcher.close()
        assert children() == []

    asyncio.run(main())


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "fetch_child" in " ".join(one.cmdline())]


class Gate:
    """A script that answers when it is opened, once for each permit."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.num_waiting = 0

    def __call__(self, connection: socket.socket) -> None:
        self.num_waiting += 1
        self.permits.acquire()
        self.num_waiting -= 1
        page(IMAGE)(connection)

    async def reached(self, num_waiting: int) -> None:
        while self.num_waiting != num_waiting:
            await asyncio.sleep(0.005)


async def refusal(fetcher: WebFetcher, url: str) -> str:
    with pytest.raises(MediaRefused) as caught:
        await fetcher.fetch(url, GUARD)
    return str(caught.value)


@pytest.mark.usefixtures("loopback")
def test_an_image_of_an_allowed_host_comes_back_whole() -> None:
    image = bytes(range(256)) * (MOST >> 8)

    async def work(fetcher: WebFetcher) -> None:
        assert await fetcher.fetch(f"http://images.example:{server.port}/a.png", GUARD) == image
        assert "at most" in await refusal(fetcher, f"http://images.example:{server.port}/b.png")
        assert await fetcher.fetch(f"http://images.example:{server.port}/a.png", GUARD) == image
        assert len(children()) == 1, "others are started when these are busy"

    def script(connection: socket.socket) -> None:
        page(image + b"x" if "/b.png" in server.heads[-1] else image)(connection)

    with WebServer(script) as server:
        fetching(work, [f"images.example:{server.port}"])


@pytest.mark.usefixtures("loopback")
def test_authorities_are_those_of_the_servers_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = server_tls(**files(authority.sign("server"))).http_ssl_context()

    async def work(fetcher: WebFetcher) -> None:
        assert await fetcher.fetch(f"https://localhost:{server.port}/a.png", GUARD) == IMAGE

    with WebServer(page(IMAGE), context) as server:
        fetching(work, [f"localhost:{server.port}"])


def test_a_private_address_is_refused_though_its_host_is_allowed() -> None:
    hosts = ("localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]")

    async def work(fetcher: WebFetcher) -> None:
        for host in hosts:
            assert "not public" in await refusal(fetcher, f"http://{host}:{server.port}/a.png")

    with WebServer(page(IMAGE)) as server:
        fetching(work, [f"{host}:{server.port}" for host in hosts])
        assert server.num_connections == 0


@pytest.mark.parametrize("domains", [(), ("images.example", "*.other.example:8080")])
def test_what_is_not_allowed_starts_no_child(domains: Sequence[str]) -> None:
    async def work(fetcher: WebFetcher) -> None:
        for url in (
            "http://evil.example/",
            "http://images.example:81/",
            "http://a.other.example/",
            "http://127.0.0.1/",
        ):
            why = await refusal(fetcher, url)
            assert "allowed_media_domains" in why
            assert why.endswith("send the bytes as a data: URL")
        assert children() == []

    fetching(work, domains)


@pytest.mark.usefixtures("loopback")
def test_few_are_fetched_at_once_and_the_others_wait_in_order() -> None:
    gate = Gate()

    async def work(fetcher: WebFetcher) -> None:
        urls = [f"http://images.example:{server.port}/{number}" for number in range(6)]
        fetches = []
        for url in urls[:2]:
            fetches.append(asyncio.create_task(fetcher.fetch(url, GUARD)))
            await gate.reached(len(fetches))
        fetches += [asyncio.create_task(fetcher.fetch(url, GUARD)) for url in urls[2:]]
        for num_done in range(1, 5):
            gate.permits.release()
            while len(server.heads) < num_done + 2:
                await asyncio.sleep(0.005)
            await gate.reached(2)
            assert len(server.heads) == num_done + 2
        gate.permits.release(2)
        assert await asyncio.gather(*fetches) == [IMAGE] * 6
        assert [head.split()[1] for head in server.heads] == [f"/{number}" for number in range(6)]

    with WebServer(gate) as server:
        fetching(work, [f"images.example:{server.port}"])


@pytest.mark.usefixtures("loopback")
def test_who_gets_no_turn_in_time_is_refused_as_overload() -> None:
    gate = Gate()

    async def work(fetcher: WebFetcher) -> None:
        url = f"http://images.example:{server.port}/a.png"
        first = asyncio.create_task(fetcher.fetch(url, GUARD))
        await gate.reached(1)
        with pytest.raises(RequestError, match="1 files are being fetched here") as caught:
            await fetcher.fetch(url, 0.1)
        assert (caught.value.reason, caught.value.retryable) == ("QUEUE_FULL", True)
        gate.permits.release(2)
        assert await first == IMAGE
        assert await fetcher.fetch(url, GUARD) == IMAGE

    with WebServer(gate) as server:
        fetching(work, [f"images.example:{server.port}"], num_fetches=1)


@pytest.mark.usefixtures("loopback")
def test_a_child_that_is_killed_costs_its_own_fetch_alone() -> None:
    gate = Gate()

    async def work(fetcher: WebFetcher) -> None:
        url = f"http://images.example:{server.port}/a.png"
        first = asyncio.create_task(fetcher.fetch(url, GUARD))
        await gate.reached(1)
        (victim,) = children()
        second = asyncio.create_task(fetcher.fetch(url, GUARD))
        await gate.reached(2)
        victim.kill()
        with pytest.raises(RequestError, match="killed by SIGKILL") as caught:
            await first
        assert (caught.value.reason, caught.value.retryable) == ("RECOVERING", True)
        gate.permits.release(3)
        assert await second == IMAGE
        assert await fetcher.fetch(url, GUARD) == IMAGE

    with WebServer(gate) as server:
        fetching(work, [f"images.example:{server.port}"])


@pytest.mark.usefixtures("loopback")
def test_a_caller_who_leaves_ends_the_child_and_gives_the_turn_back() -> None:
    gate = Gate()

    async def work(fetcher: WebFetcher) -> None:
        url = f"http://images.example:{server.port}/a.png"
        leaving = asyncio.create_task(fetcher.fetch(url, GUARD))
        await gate.reached(1)
        (child,) = children()
        leaving.cancel()
        while psutil.pid_exists(child.pid):
            await asyncio.sleep(0.005)
        gate.permits.release(2)
        assert await fetcher.fetch(url, GUARD) == IMAGE

    with WebServer(gate) as server:
        fetching(work, [f"images.example:{server.port}"], num_fetches=1)


@pytest.mark.usefixtures("loopback")
def test_a_resolver_or_a_server_that_hangs_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "GRACE_SECONDS", 0.1)
    gate = Gate()

    async def work(fetcher: WebFetcher) -> None:
        for host in ("stuck.example", "images.example"):
            with pytest.raises(TimeoutError, match=r"was not fetched within 0\.3 s; send the bytes"):
                await fetcher.fetch(f"http://{host}:{server.port}/a.png", GUARD)
        gate.permits.release(2)
        fetcher._seconds = GUARD
        assert await fetcher.fetch(f"http://images.example:{server.port}/a.png", GUARD) == IMAGE

    with WebServer(gate) as server:
        domains = [f"stuck.example:{server.port}", f"images.example:{server.port}"]
        fetching(work, domains, seconds=0.3, num_fetches=1)


@pytest.mark.usefixtures("loopback")
def test_an_answer_that_takes_all_memory_breaks_its_own_child_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(connection: socket.socket) -> None:
        if "/a.png" in server.heads[-1]:
            page(IMAGE)(connection)
            return
        page(b"-1\r\n", transfer_encoding="chunked")(connection)  # by which the library reads until the end
        while True:
            connection.sendall(bytes(1 << 20))

    async def work(fetcher: WebFetcher) -> None:
        url = f"http://images.example:{server.port}"
        assert "broke the process" in await refusal(fetcher, f"{url}/bomb.png")
        assert await fetcher.fetch(f"{url}/a.png", GUARD) == IMAGE

    with WebServer(script) as server:
        fetching(work, [f"images.example:{server.port}"], num_fetches=1, most=1 << 20)
