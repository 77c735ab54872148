"""The engine's times in usage blocks: those that the scheduler measured, where they are asked for and only there."""

import asyncio

import pytest

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
TIMINGS = {
    "queue_ms": 100.0, "prompt_n": 2, "prompt_ms": 200.0, "prompt_per_token_ms": 100.0, "prompt_per_second": 10.0,
    "predicted_n": 2, "predicted_ms": 300.0, "predicted_per_token_ms": 150.0, "predicted_per_second": 2 / 0.3,
}  # fmt: skip
"""Of the fake scheduler's usage: 3 prompt tokens, one of them cached; 0.1, 0.2 and 0.3 s."""
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2, "store": False},
    "/inference/v1/generate": {"token_ids": [70], "sampling_params": {"max_tokens": 2}},
    "/v1/messages": CHAT | {"model": "tiny"},
}
ASKED = {"stream_options": {"include_timings": True}}


def usage_of(item: object) -> dict | None:
    """The usage of an answer, a chunk or an event."""
    found = item if isinstance(item, dict) else {}
    found = found.get("response", found)
    return found.get("usage") if isinstance(found, dict) else None


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("by", ["nothing", "request", "server"])
def test_timings_are_in_the_last_usage_of_streams_and_whole_answers_that_ask_for_them(web, read_items, path, by):
    if path == "/v1/messages" and by == "request":
        return  # this API has no field for it

    async def main():
        async with web(enable_timings=by == "server") as w:
            w.scheduler.script = lambda submit: w.scheduler.answer(submit.number, [70, 71])
            body = BODIES[path] | (ASKED if by == "request" else {})
            whole = await w.client.post(path, json=body)
            assert whole.status_code == 200, whole.text
            options = {} if path in ("/v1/messages", "/v1/responses") or by == "request" else {"include_usage": True}
            body = body | {"stream": True} | ({"stream_options": options} if options else {})
            streamed = [
                usage for one in read_items((await w.client.post(path, json=body)).text) if (usage := usage_of(one))
            ]
            for usage in (usage_of(whole.json()), streamed[-1]):
                assert usage.get("timings") == (pytest.approx(TIMINGS) if by != "nothing" else None)
            assert all("timings" not in usage for usage in streamed[:-1])

    asyncio.run(main())


def test_timings_of_several_prompts_count_all_tokens_and_the_longest_times(web):
    async def main():
        async with web(enable_timings=True) as w:

            def script(submit):
                for index in range(2):
                    w.scheduler.answer(submit.number, [70, 71], index=index)

            w.scheduler.script = script
            body = {"prompt": ["x", "y"], "n": 2, "max_tokens": 2}
            timings = (await w.client.post("/v1/completions", json=body)).json()["usage"]["timings"]
            assert (timings["prompt_n"], timings["predicted_n"], timings["predicted_ms"]) == (4, 8, 300.0)

    asyncio.run(main())
