"""Large gRPC messages: looked at, parsed and converted beside the event loop, and refused before they are values."""

import asyncio
import logging
import threading

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc

from quire.frontend.limits.work_pool import LARGE_BYTES
from quire.proto import grpc_map
from quire.proto.api import GenerateRequest, RequestError
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


def test_an_answer_that_no_message_holds_is_a_refusal_and_no_traceback(serving, caplog):
    async def main():
        async with serving(max_send_bytes=1000) as s:
            caplog.clear()
            with pytest.raises(RequestError, match=r"has [0-9]{4} bytes, and a message at most 1000") as caught:
                await s.client.tokenize("x y " * 400, return_texts=True)
            assert caught.value.reason == "EXCEEDS_CAPACITY"
            assert (await s.client.tokenize("x")).token_ids
            assert not caplog.records

    asyncio.run(main())


def test_an_answer_that_did_not_reach_its_client_is_one_line_of_the_log(serving, caplog):
    async def main():
        async with serving():
            caplog.clear()
            try:  # as the library does, when it learns only afterwards that the client has refused the message
                raise cygrpc.ExecuteBatchError("Failed to send")
            except cygrpc.ExecuteBatchError:
                library.exception("ExecuteBatchError raised in core by servicer method [/quire.v1.Inference/Embed]")
            library.error("something else")

    library = logging.getLogger("grpc._cython.cygrpc")
    asyncio.run(main())
    about, other = [record for record in caplog.records if record.name == library.name]
    assert about.exc_info is None
    assert "/Embed]: its client left, or takes no message of this size" in about.message
    assert other.message == "something else"
