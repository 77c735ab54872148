"""What the scheduler refuses or ends: a status, or a terminal event and then a status."""

import asyncio

import grpc
import grpc.aio
import pytest

from quire.proto.api import Delta, Finished, GenerateRequest, RequestError
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_status import PUSHBACK_KEY


async def read(s, request, events) -> None:
    async for event in s.client.stream(request):
        events.append(event)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("QUEUE_FULL", "RESOURCE_EXHAUSTED"),
        ("EXCEEDS_CAPACITY", "INVALID_ARGUMENT"),
        ("DRAINING", "UNAVAILABLE"),
        ("INVALID_PARAMETER", "INVALID_ARGUMENT"),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_rejection_by_the_scheduler_is_a_status_and_no_event(serving, error, status, n):
    async def main():
        async with serving() as s:

            def reject(submit):
                ends = [
                    s.scheduler.finish(
                        submit.number,
                        0,
                        "rejected",
                        index,
                        error=error,
                        field="n",
                        message="why",
                        retry_after_seconds=2.0,
                    )
                    for index in range(n)
                ]
                s.scheduler.outputs(submit.number, [], ends)

            s.scheduler.script = reject
            events = []
            with pytest.raises(RequestError) as caught:
                await read(s, GenerateRequest(input="x", n=n, request_id="mine"), events)
            got = caught.value
            assert events == []
            assert (got.reason, got.status, got.field, got.message) == (error, status, "n", "why")
            assert (got.request_id, got.retry_after_seconds) == ("mine", 2.0)

    asyncio.run(main())


def test_a_full_queue_tells_when_to_try_again_in_trailing_metadata(serving):
    async def main():
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:
            s.scheduler.script = lambda submit: s.scheduler.outputs(
                submit.number,
                [],
                [s.scheduler.finish(submit.number, 0, "rejected", error="QUEUE_FULL", retry_after_seconds=1.5)],
            )
            call = channel.unary_unary("/quire.v1.Inference/Generate")(
                pb.GenerateRequest(prompt="x").SerializeToString()
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert dict(caught.value.trailing_metadata())[PUSHBACK_KEY] == "1500"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("reason", "error", "status", "word"),
    [
        ("deadline", "", "DEADLINE_EXCEEDED", "deadline"),
        ("error", "NUMERICAL", "INTERNAL", "error"),
        ("error", "POISON_REQUEST", "INTERNAL", "error"),
        ("error", "FAILED", "UNAVAILABLE", "error"),
        ("error", "NO_SUCH_WORD", "INTERNAL", "error"),
    ],
)
def test_an_output_that_fails_ends_with_its_terminal_event_and_then_the_call_with_a_status(
    serving, tokenizer, reason, error, status, word
):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello").ids
            s.scheduler.script = lambda submit: s.scheduler.answer(
                submit.number, tokens, reason, error=error, message="/secret/path 0x7f00"
            )
            events = []
            with pytest.raises(RequestError) as caught:
                await read(s, GenerateRequest(input="x"), events)
            assert caught.value.status == status
            assert caught.value.metadata["completion_tokens"] == str(len(tokens))
            assert "".join(e.text for e in events if isinstance(e, Delta)) == "hello"
            finished = events[-1]
            assert isinstance(finished, Finished)
            assert finished.finish_reason == word
            assert finished.usage.completion_tokens == len(tokens)
            assert finished.error is not None
            if status == "INTERNAL":
                assert "secret" not in caught.value.message + finished.error.message
            with pytest.raises(RequestError):
                await s.client.generate(GenerateRequest(input="x"))

    asyncio.run(main())


def test_one_failed_output_does_not_fail_the_others(serving):
    async def main():
        async with serving() as s:

            def script(submit):
                s.scheduler.answer(submit.number, [70, 71], index=0)
                s.scheduler.answer(submit.number, [70], "error", index=1, error="NUMERICAL")

            s.scheduler.script = script
            answer = await s.client.generate(GenerateRequest(input="x", n=2))
            assert [output.finished.finish_reason for output in answer.outputs] == ["length", "error"]
            assert answer.outputs[1].finished.error.reason == "NUMERICAL"

    asyncio.run(main())


def test_an_aborted_output_keeps_what_it_has(serving, tokenizer):
    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(
                submit.number, tokenizer.encode("hello").ids, "abort"
            )
            (output,) = (await s.client.generate(GenerateRequest(input="x"))).outputs
            assert (output.text, output.finished.finish_reason) == ("hello", "abort")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("state", "reason"), [("starting", "STARTING"), ("draining", "DRAINING"), ("failed", "FAILED")]
)
def test_states_that_take_nothing_are_named(serving, state, reason):
    async def main():
        async with serving() as s:
            s.scheduler.change(state, "because")
            await s.until(lambda: s.server.scheduler.state == state)
            with pytest.raises(RequestError, match=f"the engine is {state}: because") as caught:
                await s.client.generate(GenerateRequest(input="x"))
            assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", reason)
            s.scheduler.change("recovering")
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            await s.until(lambda: s.server.scheduler.state == "recovering")
            assert (await s.client.generate(GenerateRequest(input="x"))).outputs

    asyncio.run(main())
