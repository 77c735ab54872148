"""The very end of an answer: readers that stop there, slow readers of a large one, and a drain whose time is over."""

import asyncio
import json
import logging
import socket

from quire.frontend.http import connection, response_background
from quire.frontend.http.response_store import ResponseStore


def request(path: str = "/v1/completions", headers: tuple[str, ...] = (), **fields: object) -> bytes:
    body = json.dumps({"max_tokens": 400, **fields}).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def slow_client(w) -> socket.socket:
    """One whose kernel takes next to nothing for it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", w.port))
    return client


def large(w, size: int) -> None:
    """From now on every request is answered by so many bytes, as text of one output."""

    def script(submit) -> None:
        w.scheduler.outputs(
            submit.number, [(0, at, 70) for at in range(size)], [w.scheduler.finish(submit.number, size)]
        )

    w.scheduler.script = script


def test_a_reader_that_stops_right_before_the_end_does_not_keep_its_connection(web, monkeypatch, caplog):
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.3)

    async def main():
        async with web(slow_reader_bytes=64 << 20, slow_reader_seconds=0.3) as w:
            large(w, 300_000)
            client = await slow_client(w)
            with client:
                await asyncio.get_running_loop().sock_sendall(client, request(prompt="x", stream=True))
                await w.scheduler.submitted()
                await w.until(lambda: w.server.pipeline.num_open == 0)
                await w.until(lambda: w.server._http.num_connections <= 1)
            assert not [r for r in caplog.records if "internal error" in r.message]

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())


def test_a_large_answer_may_be_read_slowly_also_on_a_connection_that_closes(web, monkeypatch):
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.3)

    async def main():
        async with web(keep_alive_seconds=0.3) as w:
            large(w, 200_000)
            for headers in ((), ("Connection: close",)):
                client = await slow_client(w)
                loop = asyncio.get_running_loop()
                with client:
                    await loop.sock_sendall(client, request(headers=headers, prompt="x"))
                    got = b""
                    while piece := await loop.sock_recv(client, 4096):
                        got += piece
                        await asyncio.sleep(0.02)
                _, _, body = got.partition(b"\r\n\r\n")
                assert len(json.loads(body)["choices"][0]["text"]) == 200_000

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

    asyncio.run(main())


def test_renewing_leases_does_not_stop_what_was_begun_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(response_background, "RENEW_SECONDS", 0.0)

    async def main():
        store = ResponseStore(str(tmp_path), 1 << 20)
        background = response_background.Background(store)
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
        async with asyncio.timeout(10):
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
