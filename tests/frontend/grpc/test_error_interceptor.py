"""Every refusal: its status, its reason and its field; and the server is unharmed afterwards."""

import asyncio
import math
import re

import grpc
import grpc.aio
import pytest

from quire.proto import grpc_map
from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, RequestError
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_status import PUSHBACK_KEY, from_status

BAD = [
    ({"input": None}, "EMPTY_PROMPT", "input"),
    ({"input": ""}, "EMPTY_PROMPT", "prompt"),
    ({"input": ()}, "EMPTY_PROMPT", "prompt_token_ids"),
    ({"input": Chat([])}, "EMPTY_PROMPT", "chat.messages"),
    ({"input": (1, 420)}, "TOKEN_OUT_OF_RANGE", "prompt_token_ids"),
    ({"input": (1, -1)}, "TOKEN_OUT_OF_RANGE", "prompt_token_ids"),
    ({"input": (2**63 - 1,)}, "TOKEN_OUT_OF_RANGE", "prompt_token_ids"),
    ({"input": (1,) * 512}, "CONTEXT_LENGTH_EXCEEDED", "max_tokens"),
    ({"input": (1,) * 500, "max_tokens": 13}, "CONTEXT_LENGTH_EXCEEDED", "max_tokens"),
    ({"input": "x" * 1_000_000}, "CONTEXT_LENGTH_EXCEEDED", "prompt"),
    ({"temperature": -0.1}, "INVALID_PARAMETER", "temperature"),
    ({"temperature": 2.1}, "INVALID_PARAMETER", "temperature"),
    ({"temperature": math.nan}, "INVALID_PARAMETER", "temperature"),
    ({"top_p": 0.0}, "INVALID_PARAMETER", "top_p"),
    ({"top_p": math.inf}, "INVALID_PARAMETER", "top_p"),
    ({"top_k": -2}, "INVALID_PARAMETER", "top_k"),
    ({"min_p": 1.1}, "INVALID_PARAMETER", "min_p"),
    ({"repetition_penalty": 0.0}, "INVALID_PARAMETER", "repetition_penalty"),
    ({"repetition_penalty": 1e308}, "INVALID_PARAMETER", "repetition_penalty"),
    ({"presence_penalty": -2.5}, "INVALID_PARAMETER", "presence_penalty"),
    ({"frequency_penalty": -math.inf}, "INVALID_PARAMETER", "frequency_penalty"),
    ({"n": 0}, "INVALID_PARAMETER", "n"),
    ({"n": 65}, "INVALID_PARAMETER", "n"),
    ({"n": 10**9}, "INVALID_PARAMETER", "n"),
    ({"n": 2, "temperature": 0.0}, "INVALID_PARAMETER", "n"),
    ({"max_tokens": 0}, "INVALID_PARAMETER", "max_tokens"),
    ({"max_tokens": 10**9}, "CONTEXT_LENGTH_EXCEEDED", "max_tokens"),
    ({"min_tokens": -1}, "INVALID_PARAMETER", "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "INVALID_PARAMETER", "min_tokens"),
    ({"min_tokens": 17}, "INVALID_PARAMETER", "min_tokens"),
    ({"stop": ("x",) * 17}, "INVALID_PARAMETER", "stop"),
    ({"stop": ("",)}, "INVALID_PARAMETER", "stop"),
    ({"stop": ("x" * 257,)}, "INVALID_PARAMETER", "stop"),
    ({"stop_token_ids": (1,) * 129}, "INVALID_PARAMETER", "stop_token_ids"),
    ({"stop_token_ids": (420,)}, "TOKEN_OUT_OF_RANGE", "stop_token_ids"),
    ({"logit_bias": {1: 100.5}}, "INVALID_PARAMETER", "logit_bias"),
    ({"logit_bias": {1: math.nan}}, "INVALID_PARAMETER", "logit_bias"),
    ({"logit_bias": {-1: 1.0}}, "TOKEN_OUT_OF_RANGE", "logit_bias"),
    ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "INVALID_PARAMETER", "logit_bias"),
    ({"allowed_token_ids": (420,)}, "TOKEN_OUT_OF_RANGE", "allowed_token_ids"),
    ({"allowed_token_ids": (1,) * 65_537}, "INVALID_PARAMETER", "allowed_token_ids"),
    ({"bad_words": ("",)}, "INVALID_PARAMETER", "bad_words"),
    ({"bad_words": ("x",) * 129}, "INVALID_PARAMETER", "bad_words"),
    ({"logprobs": 21}, "INVALID_PARAMETER", "logprobs"),
    ({"logprobs": -1}, "INVALID_PARAMETER", "logprobs"),
    ({"logprob_token_ids": (1,)}, "INVALID_PARAMETER", "logprob_token_ids"),
    ({"logprob_token_ids": (1,) * 129, "logprobs": 0}, "INVALID_PARAMETER", "logprob_token_ids"),
    ({"prompt_logprobs": 21}, "INVALID_PARAMETER", "prompt_logprobs"),
    ({"priority": 1}, "UNSUPPORTED", "priority"),
    ({"cache_salt": "x" * 129}, "INVALID_PARAMETER", "cache_salt"),
    ({"request_id": ""}, "INVALID_PARAMETER", "request_id"),
    ({"request_id": "x" * 129}, "INVALID_PARAMETER", "request_id"),
    ({"timeout_seconds": 0.0}, "INVALID_PARAMETER", "timeout_seconds"),
    ({"timeout_seconds": -1.0}, "INVALID_PARAMETER", "timeout_seconds"),
    ({"timeout_seconds": 3601.0}, "INVALID_PARAMETER", "timeout_seconds"),
    ({"timeout_seconds": math.nan}, "INVALID_PARAMETER", "timeout_seconds"),
    ({"truncate_prompt_tokens": 0}, "INVALID_PARAMETER", "truncate_prompt_tokens"),
    ({"input": (1,), "add_special_tokens": True}, "INVALID_PARAMETER", "add_special_tokens"),
    ({"input": (1,), "parse_special": True}, "INVALID_PARAMETER", "parse_special"),
    ({"model": "other"}, "UNKNOWN_MODEL", "model"),
    ({"model": "../../etc/passwd\0" * 100}, "UNKNOWN_MODEL", "model"),
    ({"adapter": "../x"}, "UNKNOWN_ADAPTER", "adapter"),
]


async def read(s, request, events) -> None:
    async for event in s.client.stream(request):
        events.append(event)


def test_every_bad_field_is_refused_by_name_and_the_server_lives_on(serving):
    async def main():
        async with serving() as s:
            for values, reason, field in BAD:
                for stream in (False, True):
                    request = GenerateRequest(**{"input": "hello", **values})
                    call = read(s, request, []) if stream else s.client.generate(request)
                    with pytest.raises(RequestError) as caught:
                        await call
                    error = caught.value
                    assert (error.reason, error.field) == (reason, field), values
                    assert error.status == ("NOT_FOUND" if reason.startswith("UNKNOWN") else "INVALID_ARGUMENT")
                    assert not error.retryable
                    assert len(error.message) < 300
            assert s.scheduler.submits == []
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            assert (await s.client.generate(GenerateRequest(input="hello"))).outputs

    asyncio.run(main())


def test_messages_of_limits_name_the_numbers(serving):
    async def main():
        async with serving() as s:
            with pytest.raises(RequestError, match=r"500 prompt tokens and 13 output tokens .* 512"):
                await s.client.generate(GenerateRequest(input=(1,) * 500, max_tokens=13))
            with pytest.raises(RequestError, match=r"420 at index 1 .*\[0, 420\)"):
                await s.client.generate(GenerateRequest(input=(1, 420)))
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input="x", model="m" * 1000))
            assert "'" + "m" * 64 + "'" in caught.value.message
            assert "m" * 65 not in caught.value.message

    asyncio.run(main())


def test_unknown_fields_and_methods_and_bytes_are_refused(serving):
    async def main():
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:

            async def raw(method: str, data: bytes) -> grpc.aio.AioRpcError:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(method)(data)
                return caught.value

            error = await raw("/quire.v1.Inference/Generate", b"\x0a\x01x\xba\x3e\x01x")
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            detail = from_status(error.code(), error.details(), error.trailing_metadata())
            assert (detail.reason, detail.field) == ("UNKNOWN_FIELD", "field number 999")
            error = await raw("/quire.v1.Inference/Generate", b"\xff\xff\xff")
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "malformed protobuf" in error.details()
            error = await raw("/quire.v1.Inference/Nothing", b"")
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            for method in ("Tokenize", "Detokenize"):
                error = await raw(f"/quire.v1.Inference/{method}", b"\xba\x3e\x01x")
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            for method in ("GetServerInfo", "ListModels", "GetLoad", "Abort"):
                error = await raw(f"/quire.v1.Control/{method}", b"\xba\x3e\x01x")
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(main())


def test_metadata_over_the_limit_is_refused(serving):
    async def main():
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:
            for metadata in ([("x-a", "x" * 40_000)], [(f"x-{i}", "x" * 1000) for i in range(40)]):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/quire.v1.Control/ListModels")(b"", metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await s.client.models()

    asyncio.run(main())


def test_messages_over_the_limit_are_refused(serving):
    async def main():
        async with serving(max_receive_bytes=10_000) as s:
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input="x" * 20_000))
            assert caught.value.status == "RESOURCE_EXHAUSTED"

    asyncio.run(main())


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


def test_nothing_of_an_internal_exception_reaches_the_client(serving, monkeypatch, caplog):
    async def main():
        async with serving() as s:

            def explode(*_: object) -> None:
                raise RuntimeError("secret /home/x 0x7f001234 Traceback")

            monkeypatch.setattr(grpc_map, "generate_request", explode)
            for call in (
                s.client.generate(GenerateRequest(input="x")),
                anext(s.client.stream(GenerateRequest(input="x"))),
            ):
                with pytest.raises(RequestError) as caught:
                    await call
                assert (caught.value.status, caught.value.reason) == ("INTERNAL", "BUG")
                assert re.fullmatch(r"internal error [0-9a-f]{32}", caught.value.message)
                error_id = caught.value.metadata["error_id"]
                assert error_id in caplog.text
            assert "secret" in caplog.text

    asyncio.run(main())


def test_prompts_and_outputs_are_not_logged(serving, tokenizer, caplog):
    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokenizer.encode("hello").ids)
            await s.client.generate(GenerateRequest(input="canary-prompt"))
            with pytest.raises(RequestError):
                await s.client.generate(
                    GenerateRequest(input=Chat([ChatMessage("user", "canary-chat")]), temperature=9.0)
                )
        assert "canary" not in caplog.text
        assert "hello" not in caplog.text

    caplog.set_level("DEBUG", logger="quire")
    asyncio.run(main())
