"""The official client on /v1/completions and /v1/models: what it parses, raises and tries again."""

import asyncio

import openai
import pytest


def client_of(w, **options: object) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{w.port}/v1", api_key="none", **options)


def test_the_official_client_completes_streams_and_lists_models(web, tokenizer):
    async def main():
        async with web() as w, client_of(w) as client:
            w.answers(tokenizer.encode("hello world").ids)
            whole = await client.completions.create(model="tiny", prompt="x", n=2, temperature=0.7)
            assert [choice.text for choice in whole.choices] == ["hello world"] * 2
            assert whole.usage.prompt_tokens_details.cached_tokens == 1
            stream = await client.completions.create(
                model="tiny",
                prompt="x",
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True},
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "hello world"
            assert chunks[-1].usage.completion_tokens > 0
            assert w.scheduler.submits[-1].params.top_k == 5
            assert "tiny" in [model.id async for model in client.models.list()]
            assert (await client.models.retrieve("tiny")).owned_by == "quire"

    asyncio.run(main())


def test_the_official_client_raises_its_own_errors(web):
    async def main():
        async with web() as w, client_of(w, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as bad:
                await client.completions.create(model="tiny", prompt="x", temperature=9)
            assert (bad.value.param, bad.value.code) == ("temperature", "invalid_parameter")
            assert bad.value.request_id
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(model="other", prompt="x")

            def script(submit) -> None:
                w.scheduler.outputs(submit.number, [(0, 0, 70)])
                failed = w.scheduler.finish(submit.number, 1, "error", error="NUMERICAL")
                w.scheduler.outputs(submit.number, [], [failed])

            w.scheduler.script = script
            with pytest.raises(openai.APIError):
                async for _ in await client.completions.create(model="tiny", prompt="x", stream=True):
                    pass

    asyncio.run(main())


def test_the_official_client_tries_again_what_is_worth_it_and_nothing_else(web):
    async def main():
        async with web() as w, client_of(w, max_retries=2) as client:
            reasons = ["QUEUE_FULL"]

            def script(submit) -> None:
                if not reasons:
                    w.scheduler.answer(submit.number, [70])
                    return
                refusal = w.scheduler.finish(submit.number, 0, "rejected", error=reasons.pop())
                w.scheduler.outputs(submit.number, [], [refusal])

            w.scheduler.script = script
            assert (await client.completions.create(model="tiny", prompt="x")).choices
            assert len(w.scheduler.submits) == 2
            reasons.append("POISON_REQUEST")
            with pytest.raises(openai.InternalServerError):
                await client.completions.create(model="tiny", prompt="x")
            assert len(w.scheduler.submits) == 3

    asyncio.run(main())
