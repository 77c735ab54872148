"""A reader that stops reading is refused; its neighbours do not notice. Driven on the stream itself: below it the
transport swallows megabytes before a write waits.
"""

import asyncio

import grpc
import grpc.aio
import pytest

from quire.frontend.call import Call
from quire.proto.api import Delta, GenerateRequest, RequestError
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_status import from_status


def test_what_a_slow_reader_has_not_taken_is_merged_into_one_delta(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello world").ids
            async with s.server.pipeline.open(GenerateRequest(input="x"), Call("grpc")) as stream:
                for position, token in enumerate(tokens):
                    s.scheduler.outputs(stream.number, [(0, position, token)])
                await s.until(lambda: stream.outputs[0].num_tokens == len(tokens))
                events = await stream.take()
                deltas = [event for event in events if isinstance(event, Delta)]
                assert [delta.text for delta in deltas] == ["hello world"]

    asyncio.run(main())


@pytest.mark.parametrize("limit", [{"slow_reader_bytes": 200}, {"slow_reader_seconds": 0.3}])
def test_a_reader_beyond_the_bound_is_refused_and_its_request_aborted(serving, limit):
    async def main():
        async with serving(**limit) as s:
            stuck = asyncio.Event()

            async def read(stream) -> None:
                await stream.take()
                await stuck.wait()

            async with s.server.pipeline.open(GenerateRequest(input="x", max_tokens=400), Call("grpc")) as stream:
                reader = asyncio.create_task(read(stream))
                s.scheduler.outputs(stream.number, [(0, 0, 70)])
                await s.until(lambda: stream._reader._task is not None and not stream._reader.is_waiting)
                s.scheduler.outputs(stream.number, [(0, at, 70) for at in range(1, 60)])
                with pytest.raises(asyncio.CancelledError):
                    await reader
                assert stream.slow_reader().reason == "SLOW_READER"
                with pytest.raises(RequestError) as caught:
                    await stream.take()
                assert (caught.value.status, caught.value.reason) == ("RESOURCE_EXHAUSTED", "SLOW_READER")
                await s.until(lambda: bool(s.scheduler.aborts))
                assert s.scheduler.aborts[0].reason == "slow_reader"

    asyncio.run(main())


def test_a_client_that_never_reads_is_refused_over_the_wire_while_others_stream(serving, tokenizer):
    """Small windows, so that the transport holds little."""
    options = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]

    async def main():
        async with serving() as s:
            s.scheduler.facts = None
            facts = s.server.scheduler.welcome.facts
            async with grpc.aio.insecure_channel(s.target, options=options) as channel:
                call = channel.unary_stream(
                    "/quire.v1.Inference/Stream", response_deserializer=pb.StreamEvent.FromString
                )(pb.GenerateRequest(prompt="x", max_tokens=facts.max_model_len - 1).SerializeToString())
                number = (await s.scheduler.submitted()).number
                position, batch = 0, 2000
                token = tokenizer.encode(" jumps").ids[-1]
                while not s.scheduler.aborts:
                    s.scheduler.outputs(number, [(0, position + i, token) for i in range(batch)])
                    position += batch
                    await asyncio.sleep(0.001)
                    assert position < 20_000_000
                assert s.scheduler.aborts[0].reason == "slow_reader"
                s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
                assert (await s.client.generate(GenerateRequest(input="x"))).outputs
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    async for _ in call:
                        pass
                error = from_status(caught.value.code(), caught.value.details(), caught.value.trailing_metadata())
                assert (error.status, error.reason) == ("RESOURCE_EXHAUSTED", "SLOW_READER")

    asyncio.run(main())


def test_a_few_steps_of_many_logprobs_make_no_reader_slow(serving):
    async def main():
        async with serving() as s:
            request = GenerateRequest(input="x", n=64, logprobs=20, logprob_token_ids=range(128), temperature=1.0)
            async with s.server.pipeline.open(request, Call("grpc")) as stream:
                per_step = stream.prepared.step_bytes
                assert per_step > s.server._config.slow_reader_bytes
                assert stream._reader.max_unread_bytes >= 2 * per_step

    asyncio.run(main())
