"""Bytes of bodies that are read and prepared: one bound over all connections, which nobody who is slow can hold."""

import asyncio

import grpc
import grpc.aio
import pytest
from parts.clock import GUARD

from quire.frontend.limits.byte_budget import SMALL_BYTES, SMALL_SHARE, Body, ByteBudget, current_body
from quire.proto.api import RequestError
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_status import from_status

LARGE = 2 * SMALL_BYTES


class Clocked(ByteBudget):
    """Time passes when the test says so."""

    def __init__(self, max_bytes: int) -> None:
        self.time = 0.0
        self.told: list[str] = []
        super().__init__(max_bytes, self.told.append)

    def now(self) -> float:
        return self.time


def reading(budget: Clocked, size: int, gone: list[Body]) -> Body:
    body = Body(budget)
    body.give_way = lambda: gone.append(body)
    body.grow(size)
    return body


def test_bytes_count_as_they_come_and_are_free_when_their_prompts_are_on_their_way():
    budget = Clocked(10 * LARGE)
    with budget.body() as body:
        assert current_body() is body
        body.num_parts = 2
        body.grow(100)
        body.grow(200)
        assert (budget.used, body.size) == (300, 300)
        body.prepared()
        assert budget.used == 300
        body.prepared()
        assert (budget.used, body.size) == (0, 300)
        body.grow(50)
    assert budget.used == 0
    assert current_body() is None


def test_what_finds_no_room_is_refused_with_advice():
    budget = Clocked(4 * LARGE)
    busy = [Body(budget) for _ in range(3)]
    for body in busy:
        body.grow(LARGE)
    with pytest.raises(RequestError, match=f"{3 * LARGE} bytes are being read and prepared") as caught:
        Body(budget).grow(LARGE)
    error = caught.value
    assert (error.reason, error.retryable, error.retry_after_seconds) == ("QUEUE_FULL", True, 1.0)
    assert (budget.told, budget.used) == (["refused"], 3 * LARGE)


def test_a_share_is_for_small_bodies_alone():
    budget = Clocked(SMALL_SHARE * LARGE)
    large = [Body(budget) for _ in range(SMALL_SHARE - 1)]
    for body in large:
        body.grow(LARGE)
    with pytest.raises(RequestError):
        Body(budget).grow(LARGE)
    Body(budget).grow(SMALL_BYTES)
    Body(budget).grow(SMALL_BYTES)
    with pytest.raises(RequestError):
        Body(budget).grow(1)


def test_the_slowest_that_is_still_read_gives_way_to_a_faster_one():
    budget, gone = Clocked(4 * LARGE), []
    slowest, slow = reading(budget, LARGE, gone), reading(budget, LARGE + 1000, gone)
    prepared = Body(budget)
    prepared.grow(LARGE)
    prepared.give_way = None
    budget.time = 10.0
    fast = Body(budget)
    fast.grow(LARGE)
    assert gone == [slowest]
    assert slowest.gave_way
    assert not slow.gave_way
    assert budget.told == ["gave_way"]
    slower = Body(budget)
    budget.time = 1000.0
    with pytest.raises(RequestError):
        slower.grow(LARGE)
    assert gone == [slowest]


def post(length: int) -> bytes:
    return (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % length
    )


def test_a_sender_that_promises_much_and_sends_little_cannot_keep_others_out(web):
    async def main():
        async with web(max_preparing_bytes=4 * LARGE) as w:
            slow = [await w.connect() for _ in range(3)]
            for _, writer in slow:
                writer.write(post(8 << 20) + b'{"prompt": "' + b"a" * LARGE)
            await w.until(lambda: w.server.budget.used >= 3 * LARGE)
            now = w.server.budget.now
            w.server.budget.now = lambda: now() + GUARD  # they have sent no more for so long
            answer = await w.client.post("/tokenize", json={"prompt": "a " * (LARGE // 2)})
            assert answer.status_code == 200
            assert len(answer.json()["tokens"]) == answer.json()["count"]
            async with asyncio.timeout(GUARD):
                first = await asyncio.wait(
                    [asyncio.ensure_future(reader.readuntil(b"\r\n\r\n")) for reader, _ in slow],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                head = first[0].pop().result()
            assert head.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: 1" in head
            for _, writer in slow:
                writer.close()
            await w.until(lambda: w.server.budget.used == 0)
            page = (await w.client.get("/metrics")).text
            assert 'quire_bodies_refused_total{outcome="gave_way"} 1' in page.replace(".0\n", "\n")

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle_of_its_body_gives_its_bytes_back(web):
    async def main():
        async with web() as w:
            _, writer = await w.connect()
            writer.write(post(8 << 20) + b'{"prompt": "' + b"a" * LARGE)
            await w.until(lambda: w.server.budget.used > LARGE)
            writer.close()
            await w.until(lambda: w.server.budget.used == 0)

    asyncio.run(main())


def test_both_doors_share_the_bound_and_answers_hold_nothing_of_it(web):
    async def main():
        async with web(max_preparing_bytes=2 * LARGE) as w, grpc.aio.insecure_channel(w.serving.target) as channel:
            raw = pb.TokenizeRequest(text="a" * 2 * LARGE).SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/quire.v1.Inference/Tokenize")(raw)
            error = caught.value
            detail = from_status(error.code(), error.details(), error.trailing_metadata())
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (detail.reason, detail.retry_after_seconds) == ("QUEUE_FULL", 1.0)
            refused = await w.client.post("/tokenize", json={"prompt": "a" * 2 * LARGE})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")

            asked = {"prompt": "x", "stream": True, "max_tokens": 9, "metadata": {"a": "b" * SMALL_BYTES}}
            reading = asyncio.create_task(w.client.post("/v1/completions", json=asked))
            submit = await w.scheduler.submitted()
            assert w.server.budget.used == 0
            w.scheduler.answer(submit.number, [70])
            assert (await reading).text.endswith("[DONE]\n\n")

    asyncio.run(main())
