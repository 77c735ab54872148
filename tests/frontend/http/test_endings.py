"""The very end of an answer: readers that stop there, slow readers of a large one, a drain whose time is over, and
responses that are made in the background.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from parts.clock import GUARD

from quire.frontend.config import FrontendConfig
from quire.frontend.http import connection
from quire.frontend.http.listener import HttpListener
from quire.frontend.http.openai.responses import background as response_background
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.frontend.metrics.metrics import Metrics
from quire.proto.process.addresses import listen_addresses

LARGE = 8 << 20
"""More than the kernel takes for a reader that reads nothing."""


async def answer_large(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(LARGE).encode())]})
    if scope["path"] == "/whole":
        await send({"type": "http.response.body", "body": b"x" * LARGE})
    else:
        await send({"type": "http.response.body", "body": b"x" * (LARGE - 1), "more_body": True})
        await send({"type": "http.response.body", "body": b"x"})


@asynccontextmanager
async def listening(**changes: object) -> AsyncIterator[tuple[HttpListener, socket.socket]]:
    """A listener that answers like this, and a client."""
    values = {"scheduler_address": "ipc://none", "model": "none", "served_model_names": ("m",), "http_port": 0}
    config = FrontendConfig(**{**values, **changes})
    listener = HttpListener(config, answer_large, listen_addresses("127.0.0.1"), 8, Metrics())
    port = await listener.start()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        yield listener, client
    await listener.close(0.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD):
        while not condition():
            await asyncio.sleep(0.002)


def test_a_reader_that_stops_at_the_end_of_its_answer_does_not_keep_its_connection(monkeypatch):
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)

    async def main():
        async with listening(slow_reader_seconds=0.2) as (listener, client):
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: listener.num_connections == 1)
            await until(lambda: listener.num_connections == 0)

    asyncio.run(main())


@pytest.mark.parametrize("header", ["Accept: */*", "Connection: close"])
def test_a_large_answer_may_be_read_slowly_to_its_end(monkeypatch, header):
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.1)

    async def main():
        loop = asyncio.get_running_loop()
        async with listening(keep_alive_seconds=0.1) as (_, client):
            await loop.sock_sendall(client, f"GET /whole HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
            got, begin = 0, loop.time()
            while piece := await loop.sock_recv(client, 1 << 20):
                got += len(piece)
                if loop.time() - begin < 1.0:
                    await asyncio.sleep(0.01)
            assert got > LARGE

    asyncio.run(main())


def test_an_answer_whose_work_ends_behind_its_connection_leaves_no_timer(monkeypatch):
    """asyncio's transport fails in `abort` once `close` has sent what was left: it knows its loop no longer."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.01)
    failures: list[dict[str, object]] = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        async with listening() as (listener, client):

            async def lingering(scope, receive, send):
                await answer_large({"path": "/whole"}, receive, send)
                await until(lambda: not listener._state.connections)

            await until(lambda: len(listener._state.connections) == 1)
            (accepted,) = listener._state.connections
            accepted.app = lingering
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while await loop.sock_recv(client, 1 << 20):
                pass
            await until(lambda: accepted._task is None)
            await asyncio.sleep(0.05)

    asyncio.run(main())
    assert not failures


def test_a_client_whose_network_is_gone_is_noticed():
    async def main():
        async with listening() as (listener, _):
            await until(lambda: len(listener._state.connections) == 1)
            (accepted,) = listener._state.connections
            of = accepted.transport.get_extra_info("socket")
            assert of.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            idle, interval, count, unacknowledged = (of.getsockopt(socket.IPPROTO_TCP, one) for one in options)
            assert (idle + interval * count, unacknowledged) == (80, 80_000)

    asyncio.run(main())


def test_a_drain_that_runs_out_of_time_still_ends_every_stream_with_a_word(web, read_items):
    async def main():
        async with web(drain_seconds=0.1) as w:
            seen = asyncio.Event()

            async def read() -> str:
                text = ""
                async with w.client.stream(
                    "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 400, "stream": True}
                ) as answer:
                    async for piece in answer.aiter_text():
                        text += piece
                        seen.set()
                return text

            reading = asyncio.create_task(read())
            number = (await w.scheduler.submitted()).number
            w.scheduler.outputs(number, [(0, 0, 70)])
            await seen.wait()
            w.server.drain()
            got = read_items(await reading)
            assert got[-1]["error"]["code"] == "draining"
            assert "[DONE]" not in got
            await w.until(lambda: any(number in abort.numbers for abort in w.scheduler.aborts))

    asyncio.run(main())


def test_renewing_leases_does_not_stop_what_was_begun_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(response_background, "RENEW_SECONDS", 0.0)

    async def main():
        store = ResponseStore(str(tmp_path), 1 << 20)
        background = response_background.BackgroundResponses(store)
        renewing, goes_on = asyncio.Event(), asyncio.Event()
        renew = store.renew

        async def slowly(ids):
            renewed = await renew(ids)
            renewing.set()
            await goes_on.wait()
            return renewed

        monkeypatch.setattr(store, "renew", slowly)
        done: list[str] = []
        end = asyncio.Event()

        async def make(id: str) -> None:
            await store.put(id, "", "in_progress", b"[]", b"{}")
            background.lease(id)
            await end.wait()
            done.append(id)

        background.start(make("a"))
        await renewing.wait()
        background.start(make("b"))
        async with asyncio.timeout(GUARD):
            while "b" not in background._leased:
                await asyncio.sleep(0.001)
            renewing.clear()
            goes_on.set()
            await renewing.wait()
            end.set()
            while background._tasks:
                await asyncio.sleep(0.001)
        assert sorted(done) == ["a", "b"]

    asyncio.run(main())


def test_a_drain_waits_until_a_background_response_is_stored(web, tmp_path, monkeypatch):
    finish = ResponseStore.finish

    async def slowly(self, *args):
        await asyncio.sleep(0.2)
        return await finish(self, *args)

    monkeypatch.setattr(ResponseStore, "finish", slowly)

    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            made = (await w.client.post("/v1/responses", json={"input": "hello", "background": True})).json()
            number = (await w.scheduler.submitted()).number
            w.server.drain()
            w.scheduler.answer(number, [70, 71])
            await w.until(lambda: w.server.pipeline.num_open == 0)
            stored = await ResponseStore(str(tmp_path), 1 << 20).get(made["id"])
            assert stored.status == "incomplete"

    asyncio.run(main())


def test_the_time_out_counts_while_a_request_waits_for_its_tokens(web, monkeypatch):
    async def main():
        async with web() as w:
            busy = threading.Event()
            monkeypatch.setattr(w.server.models.default.tokenizer, "column", lambda *_: busy.wait())
            try:
                # a text that is encoded in a thread, cut to what fits
                answer = await w.complete(prompt="x " * 3000, truncate_prompt_tokens=4, timeout_seconds=0.2)
            finally:
                busy.set()
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
            assert not w.scheduler.submits

    asyncio.run(main())
