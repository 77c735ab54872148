"""Every refusal: its status, its reason and its field; and the server is unharmed afterwards."""

import asyncio
import math
import re

import grpc
import grpc.aio
import pytest

from quire.proto import grpc_map
from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError
from quire.proto.grpc_status import from_status


async def read(s, request, events) -> None:
    async for event in s.client.stream(request):
        events.append(event)


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
