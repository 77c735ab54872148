"""Large gRPC messages: looked at, parsed and converted beside the event loop, and refused before they are values."""

import asyncio
import threading

import grpc
import grpc.aio
import pytest

from quire.frontend.limits.work_pool import LARGE_BYTES
from quire.proto import grpc_map
from quire.proto.api import GenerateRequest
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_map import contents
from quire.proto.grpc_status import from_status


def test_a_chat_of_150_000_messages_is_refused_before_one_of_them_becomes_a_value(serving, monkeypatch):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")] * 150_000)
    monkeypatch.setattr(grpc_map, "generate_request", lambda message: pytest.fail("it was converted"))

    async def main():
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:
            call = channel.unary_unary("/quire.v1.Inference/Generate")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(pb.GenerateRequest(chat=chat).SerializeToString())
            error = caught.value
            detail = from_status(error.code(), error.details(), error.trailing_metadata())
            assert (detail.reason, detail.field) == ("INVALID_PARAMETER", "request")
            assert not s.scheduler.submits

    asyncio.run(main())


def test_a_large_message_is_read_in_threads_of_its_own(serving, monkeypatch):
    threads: list[str] = []
    check, read = contents.check_contents, grpc_map.generate_request
    monkeypatch.setattr(
        "quire.frontend.grpc.error_interceptor.check_contents",
        lambda *a: (threads.append(threading.current_thread().name), check(*a)),
    )
    monkeypatch.setattr(
        grpc_map, "generate_request", lambda m: (threads.append(threading.current_thread().name), read(m))[1]
    )

    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            for ids in ([70], [70] * LARGE_BYTES):
                request = GenerateRequest(input=ids, truncate_prompt_tokens=3, max_tokens=1)
                await s.client.generate(request)
        own = threading.main_thread().name
        small, large = threads[:2], threads[-2:]
        assert small == [own, own]
        assert all(name.startswith("bodies") for name in large)

    asyncio.run(main())


def test_metadata_is_taken_up_to_the_bound_of_http_headers_and_refused_beyond_it_each_time(serving):
    bound = 24 << 10

    async def main():
        async with serving(max_header_bytes=bound) as s, grpc.aio.insecure_channel(s.target) as channel:
            call = channel.unary_unary("/quire.v1.Control/ListModels")
            for size in range(9 << 10, bound - 1024, 1024):
                await call(b"", metadata=(("x-baggage", "x" * size),))
            for size in (bound, bound + 4096, 2 * bound) * 4:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"", metadata=(("x-baggage", "x" * size),))
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await call(b"")

    asyncio.run(main())
