"""The small calls, who may make them, and what health and reflection tell."""

import asyncio
import json
import threading

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire.frontend.config import SamplingOverrides
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto import grpc_map
from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError
from quire.proto.client import Client
from quire.proto.generated import quire_pb2 as pb

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_tokenize_and_detokenize_are_inverse_and_tell_the_limit(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = await s.client.tokenize("hello <|end|> 🙂", return_texts=True)
            assert await s.client.detokenize(tokens.token_ids) == "hello <|end|> 🙂"
            assert not {0, 1, 2}.intersection(tokens.token_ids)
            assert len(tokens.texts) == len(tokens.token_ids)
            assert tokens.texts[0] == tokenizer.decode([tokens.token_ids[0]])
            assert (await s.client.tokenize("hello <|end|> 🙂")).texts == ()
            assert tokens.max_model_len == 512
            chat = await s.client.tokenize(Chat([ChatMessage("user", "hi")]))
            text = "<|turn|>user\nhi<|end|>\n<|turn|>assistant\n"
            assert await s.client.detokenize(chat.token_ids, skip_special_tokens=False) == text
            assert await s.client.detokenize(chat.token_ids) == "user\nhi\nassistant\n"
            for bad in ((-1,), (420,), (2**62,)):
                with pytest.raises(RequestError) as caught:
                    await s.client.detokenize(bad)
                assert (caught.value.reason, caught.value.field) == ("TOKEN_OUT_OF_RANGE", "token_ids")

    asyncio.run(main())


def test_server_info_models_load_and_abort(serving):
    async def main():
        async with serving(served_model_names=("tiny", "alias")) as s:
            info = await s.client.server_info()
            assert (info.state, info.max_model_len, info.vocab_size, info.architecture) == ("ready", 512, 420, "Tiny")
            assert (info.default_temperature, info.default_top_k, info.default_top_p) == (0.5, 7, 1.0)
            assert (info.max_num_seqs, info.supports_chat, info.supports_priority) == (256, True, False)
            assert info.eos_token_ids == (0,)
            models = await s.client.models()
            assert [(model.name, model.base) for model in models] == [("tiny", ""), ("alias", ""), ("poet", "tiny")]
            load = await s.client.load()
            assert (load.num_running, load.free_blocks, load.used_slots_share) == (3, 7, 0.5)
            reading = asyncio.create_task(s.client.generate(GenerateRequest(input="x", request_id="mine")))
            await s.scheduler.submitted()
            assert await s.client.abort("mine", "other") == {"mine": 1, "other": 0}
            with pytest.raises(RequestError) as caught:
                await s.client.abort()
            assert caught.value.field == "request_ids"
            for no_id in ("", "a b", "é", "a\x1b[2J", "a\n", "\x9b2J", "a" * 129):
                with pytest.raises(RequestError) as caught:
                    await s.client.abort("mine", no_id)
                assert (caught.value.status, caught.value.field) == ("INVALID_ARGUMENT", "request_ids[1]")
                with pytest.raises(RequestError) as caught:
                    await s.client.explain(no_id)
                assert (caught.value.status, caught.value.field) == ("INVALID_ARGUMENT", "request_id")
            reading.cancel()

    asyncio.run(main())


def test_generation_defaults_of_the_model_can_be_turned_off(serving):
    async def main():
        async with serving(use_generation_config=False) as s:
            assert (await s.client.server_info()).default_temperature == 1.0

    asyncio.run(main())


def test_the_request_goes_before_the_deployment_and_that_before_the_model(serving, tokenizer):
    """The model says temperature 0.5 and top_k 7."""

    async def main():
        said = SamplingOverrides(top_k=-1, top_p=0.9, repetition_penalty=1.2)
        async with serving(override_generation_config=said) as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokenizer.encode("hello").ids)
            info = await s.client.server_info()
            assert (info.default_temperature, info.default_top_k, info.default_top_p) == (0.5, 0, 0.9)
            assert (info.default_min_p, info.default_repetition_penalty) == (0.0, 1.2)
            await s.client.generate(GenerateRequest(input="x", top_p=0.4))
            params = s.scheduler.submits[-1].params
            assert (params.temperature, params.top_k, params.top_p) == (0.5, 0, 0.4)
            assert (params.min_p, params.repetition_penalty) == (0.0, 1.2)

    asyncio.run(main())


def test_the_blocking_client_does_the_same(serving, tokenizer):
    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokenizer.encode("hello").ids)

            def use() -> None:
                with Client(s.target) as client:
                    assert client.generate(GenerateRequest(input="x")).outputs[0].text == "hello"
                    events = list(client.stream(GenerateRequest(input="x")))
                    assert events[-1].finish_reason == "length"
                    assert client.detokenize(client.tokenize("fox").token_ids) == "fox"
                    assert client.server_info().state == client.load().state == "ready"
                    assert client.models()[0].name == "tiny"
                    assert client.abort("nobody") == {"nobody": 0}
                    with pytest.raises(RequestError) as caught:
                        client.generate(GenerateRequest(input="x", top_p=2.0))
                    assert caught.value.field == "top_p"
                    with pytest.raises(RequestError) as caught:
                        next(client.stream(GenerateRequest(input="x", top_p=2.0)))
                    assert caught.value.field == "top_p"

            await asyncio.to_thread(use)

    asyncio.run(main())


async def all_methods(channel: grpc.aio.Channel) -> list[tuple[str, bool]]:
    """Every method of every service this server tells of by reflection: its path and whether it streams requests."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)

    async def ask(request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
        async for response in stub.ServerReflectionInfo(iter([request])):
            return response
        raise AssertionError("no answer")

    listed = await ask(reflection_pb2.ServerReflectionRequest(list_services=""))
    return [service.name for service in listed.list_services_response.service]


def test_reflection_lists_the_services(serving):
    async def main():
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:
            names = await all_methods(channel)
            assert set(names) == {
                "quire.v1.Inference",
                "quire.v1.Control",
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
            }

    asyncio.run(main())


def test_reflection_can_be_turned_off(serving):
    async def main():
        async with serving(reflection=False) as s, grpc.aio.insecure_channel(s.target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await all_methods(channel)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


def test_watch_tells_every_transition_and_that_a_service_is_unknown(serving):
    async def main():
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="quire.v1.Inference"))
            assert (await watch.read()).status == SERVING
            for state in ("starting", "recovering"):
                s.scheduler.change(state)
                assert (await watch.read()).status == NOT_SERVING
                s.scheduler.change("ready")
                assert (await watch.read()).status == SERVING
            unknown = stub.Watch(health_pb2.HealthCheckRequest(service="nobody"))
            assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            s.server.drain()
            assert (await watch.read()).status == NOT_SERVING
            watch.cancel()
            unknown.cancel()

    asyncio.run(main())


def test_a_frontend_without_any_scheduler_serves_health_and_says_starting(serving, tmp_path):
    async def main():
        async with serving(wait=False, scheduler_address=f"ipc://{tmp_path}/nobody.sock") as s:
            info = await s.client.server_info()
            assert (info.state, info.max_model_len) == ("starting", 0)
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input="x"))
            assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", "STARTING")
            with pytest.raises(RequestError) as caught:
                await s.client.load()
            assert caught.value.reason == "STARTING"
            assert await s.client.detokenize((await s.client.tokenize("hello")).token_ids) == "hello"

    asyncio.run(main())


def test_bad_model_files_are_refused_by_name(serving, model_dir, tmp_path):
    async def start(**config: str) -> None:
        async with serving(wait=False, **config):
            raise AssertionError("it started")

    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "tokenizer.json").write_text((model_dir / "tokenizer.json").read_text())
    (bad / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    with pytest.raises(ValueError, match=r"generation_config\.json.*temperature"):
        asyncio.run(start(model=str(bad)))
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        asyncio.run(start(tokenizer=str(tmp_path / "none")))
    with pytest.raises(ValueError, match="api_key_file"):
        asyncio.run(start(api_key_file=str(tmp_path / "none")))


def test_other_threads_run_while_a_long_text_is_encoded(model_dir):
    text_tokenizer = TextTokenizer(str(model_dir))
    encoder = threading.Thread(target=text_tokenizer.encode, args=("hello world " * 100_000,))
    turns = 0
    encoder.start()
    while encoder.is_alive():
        encoder.join(0.001)
        turns += 1
    assert turns > 5  # one, if the library kept everybody out meanwhile


@pytest.mark.parametrize("logprobs", [0, None])
def test_an_answer_with_logprobs_is_written_beside_the_loop(serving, monkeypatch, logprobs):
    """A million candidates take seconds, and a silent frontend loses its lease."""
    writers = []
    write = grpc_map.generation_message
    monkeypatch.setattr(
        grpc_map, "generation_message", lambda value: (writers.append(threading.current_thread()), write(value))[1]
    )

    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            await s.client.generate(GenerateRequest(input="x", logprobs=logprobs))
            assert (writers[0] is threading.main_thread()) == (logprobs is None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("formats", "told"),
    [(["path", "naïve", "date"], "format=na%C3%AFve, format=path"), ([f"{n}{'漢' * 99}" for n in range(99)], "...")],
)
def test_formats_that_nobody_checks_are_named_in_trailing_metadata(serving, formats, told) -> None:
    """As many as a client's bounds on metadata take."""

    async def main() -> None:
        schema = {"prefixItems": [{"type": "string", "format": name} for name in formats]}
        async with serving() as s, grpc.aio.insecure_channel(s.target) as channel:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [5], "stop")
            request = pb.GenerateRequest(prompt="hello", structured=pb.Structured(json_schema=json.dumps(schema)))
            for many in (False, True):
                method = f"/quire.v1.Inference/{'Stream' if many else 'Generate'}"
                call = (channel.unary_stream if many else channel.unary_unary)(method)(request.SerializeToString())
                assert [message async for message in call] if many else await call
                (named,) = [value for key, value in await call.trailing_metadata() if key == "x-quire-ignored"]
                assert named == told if told != "..." else named.endswith(told)
                assert len(named) <= 1024

    asyncio.run(main())
