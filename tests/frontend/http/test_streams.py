"""How streams end over HTTP: readers that leave or stand still, failures after the first token, and a drain."""

import asyncio
import json
import socket

import httpx
import pytest
from parts.clock import GUARD

from quire.frontend.http import sse


def post(**fields: object) -> bytes:
    body = json.dumps({"prompt": "x", "max_tokens": 400, **fields}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize("size", [0, 2_000_000])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_token", [False, True])
def test_a_client_that_leaves_aborts_its_request_at_once(web, stream, after_token, size):
    """Also one whose body came faster than it was read."""

    async def main():
        async with web() as w:
            _, writer = await w.connect()
            writer.write(post(stream=stream, ignored="x" * size))
            number = (await w.scheduler.submitted()).number
            if after_token:
                w.scheduler.outputs(number, [(0, 0, 70)])
                await w.until(lambda: w.server.scheduler._streams._by_number[number].outputs[0].num_tokens == 1)
            writer.transport.abort()
            await w.until(lambda: bool(w.scheduler.aborts))
            assert w.scheduler.aborts[0].numbers == (number,)
            assert w.scheduler.aborts[0].reason == "client"
            await w.until(lambda: w.server.pipeline.num_open == 0)

    asyncio.run(main())


def test_a_client_that_leaves_aborts_every_prompt_of_its_call(web):
    async def main():
        async with web() as w:
            _, writer = await w.connect()
            writer.write(post(prompt=["a", "b", "c"], stream=True))
            await w.scheduler.submitted(3)
            writer.transport.abort()
            await w.until(lambda: len(w.scheduler.aborts) == 3)

    asyncio.run(main())


def test_a_stream_that_waits_is_kept_open_by_comments(web, monkeypatch):
    """Between two tokens a model may load for minutes; a proxy would close the connection after one."""
    monkeypatch.setattr(sse, "QUIET_SECONDS", 0.2)

    async def main():
        async with web() as w:
            reader, writer = await w.connect()
            writer.write(post(stream=True))
            number = (await w.scheduler.submitted()).number
            w.scheduler.outputs(number, [(0, 0, 70)])
            for _ in range(3):
                await asyncio.wait_for(reader.readuntil(sse.COMMENT), GUARD)
            w.scheduler.outputs(number, [(0, 1, 71)], [w.scheduler.finish(number, 2)])
            rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), GUARD)
            assert b"data: [DONE]" in rest
            await asyncio.sleep(0.5)
            assert not reader._buffer  # nothing follows the end

    asyncio.run(main())


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
def test_a_reader_that_stands_still_is_refused_while_others_stream(web, prompt):
    async def main():
        async with web() as w:
            reading = socket.socket()
            reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reading.setblocking(False)
            await asyncio.get_running_loop().sock_connect(reading, ("127.0.0.1", w.port))
            _, writer = await asyncio.open_connection(sock=reading, limit=2)
            writer.write(post(prompt=prompt, stream=True))
            number = (await w.scheduler.submitted()).number
            position = 0
            while not w.scheduler.aborts:
                w.scheduler.outputs(number, [(0, position + i, 70) for i in range(2000)])
                position += 2000
                await asyncio.sleep(0.001)
                assert position < 5_000_000
            assert w.scheduler.aborts[0].reason == "slow_reader"
            w.answers([70])
            assert (await w.complete(prompt="x")).status_code == 200
            await w.until(lambda: w.server.pipeline.num_open == 0)
            writer.transport.abort()

    asyncio.run(main())


def test_a_failure_after_the_first_token_is_one_last_item_and_no_done(web, read_items):
    async def main():
        async with web() as w:

            def script(submit) -> None:
                w.scheduler.outputs(submit.number, [(0, 0, 70)])
                failed = w.scheduler.finish(submit.number, 1, "error", error="NUMERICAL")
                w.scheduler.outputs(submit.number, [], [failed])

            w.scheduler.script = script
            headers = {"x-request-id": "job-1"}
            response = await w.client.post("/v1/completions", json={"prompt": "x", "stream": True}, headers=headers)
            *chunks, error = read_items(response.text)
            assert response.status_code == 200
            assert chunks[-1]["choices"][0]["finish_reason"] == "error"
            assert (error["error"]["code"], error["error"]["request_id"]) == ("numerical", "job-1")
            assert "[DONE]" not in response.text

    asyncio.run(main())


def test_a_drain_lets_streams_end_and_answers_new_requests_with_503(web, read_items):
    async def main():
        async with web() as w:
            streaming = asyncio.create_task(w.complete(prompt="x", stream=True))
            number = (await w.scheduler.submitted()).number
            w.server.drain()
            refused = await w.complete(prompt="x")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert refused.headers["retry-after"] == "1"
            assert (await w.client.get("/ready")).status_code == 503
            assert (await w.client.get("/health")).status_code == 200
            w.scheduler.answer(number, [70, 71])
            assert read_items((await streaming).text)[-1] == "[DONE]"

            async def closed() -> bool:
                try:
                    await w.client.get("/version")
                except httpx.TransportError:
                    return True
                return False

            async with asyncio.timeout(GUARD):
                while not await closed():
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_everything_that_arrived_between_two_reads_is_one_write(web, tokenizer):
    """What makes HTTP as cheap as gRPC under load."""

    async def main():
        tokens = tokenizer.encode("the quick brown fox jumps").ids
        async with web() as w:

            def script(submit) -> None:
                events = [(index, at, token) for at, token in enumerate(tokens) for index in range(4)]
                ends = [w.scheduler.finish(submit.number, len(tokens), "length", index) for index in range(4)]
                w.scheduler.outputs(submit.number, events, ends)

            w.scheduler.script = script
            sent = post(stream=True, n=4, temperature=1.0).replace(b"Host", b"Connection: close\r\nHost")
            answer = await w.raw(sent)
            sizes = [line for line in answer.body.split(b"\r\n") if line and len(line) < 8]
            assert len(sizes) == 3, "all choices, [DONE], and the last chunk"

    asyncio.run(main())
