"""What is in a request is looked at beside the event loop, in threads of its own, and as long as somebody waits."""

import asyncio
import json
import threading
import time
from collections import Counter

import msgspec
import pytest
from parts.clock import GUARD

from quire.frontend.http import answer, sse
from quire.frontend.http.openai import completion_stream
from quire.frontend.limits.work_pool import LARGE_BYTES, WorkPool
from quire.proto.api import GenerateRequest
from quire.proto.messages.params import ParameterError
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs


def test_a_large_body_is_looked_into_in_threads_of_its_own_and_a_small_one_where_it_is(web, monkeypatch):
    looked: list[str] = []
    monkeypatch.setattr(
        "quire.frontend.http.body.scan", lambda *args, **kwargs: looked.append(threading.current_thread().name)
    )

    async def main():
        async with web() as w:
            w.answers([70])
            for text in ("x", "x " * LARGE_BYTES):
                await w.complete(prompt=text, max_tokens=1, truncate_prompt_tokens=3)
        assert looked[0] == threading.main_thread().name
        assert looked[1].startswith("bodies")

    asyncio.run(main())


def test_heavy_bodies_leave_metrics_and_answers_their_threads(web, monkeypatch):
    """Every thread of theirs is busy; nothing else waits."""
    release = threading.Event()
    monkeypatch.setattr("quire.frontend.http.body.scan", lambda *args, **kwargs: release.wait(GUARD))

    async def main():
        async with web() as w:
            w.answers([70])
            heavy = [asyncio.create_task(w.complete(prompt="x " * LARGE_BYTES)) for _ in range(20)]
            await asyncio.sleep(0.1)
            async with asyncio.timeout(GUARD):
                assert (await w.client.get("/metrics")).status_code == 200
                generation = await w.serving.client.generate(GenerateRequest(input="x", logprobs=1, max_tokens=1))
                assert generation.outputs[0].logprobs is not None
            release.set()
            assert {(await one).status_code for one in heavy} == {400}

    monkeypatch.setattr("quire.frontend.http.body.decode", lambda raw, kind: _refuse())
    try:
        asyncio.run(main())
    finally:
        release.set()


def _refuse() -> None:
    raise ParameterError("body", "of a test")


def test_a_client_that_leaves_frees_the_thread_that_looks_into_its_body(web, monkeypatch):
    begun, stopped = [], []

    def look(raw, field, is_stopped):
        begun.append(field)
        while not is_stopped():
            time.sleep(0.001)
        stopped.append(field)

    async def main():
        async with web(body_threads=1) as w:
            w.answers([70])
            with monkeypatch.context() as patched:
                patched.setattr("quire.frontend.http.body.scan", look)
                leaving = asyncio.create_task(w.complete(prompt="x" * LARGE_BYTES))
                await w.until(lambda: bool(begun))
                leaving.cancel()
                await w.until(lambda: bool(stopped))
            answer = await w.complete(prompt="x" * LARGE_BYTES, truncate_prompt_tokens=3, max_tokens=1)
            assert answer.status_code in (200, 400)
            assert w.server.budget.used == 0

    asyncio.run(main())


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_logprobs_of_a_long_prompt_are_told_in_pieces_between_which_others_come(web, door):
    num, top = 400, 20
    entries = tuple(
        PositionLogprobs(70, -0.5, 1, tuple(range(100, 100 + top)), tuple(-1.0 - rank for rank in range(top)))
        for _ in range(num - 1)
    )

    async def main():
        async with web() as w:

            def script(submit) -> None:
                told = OutputLogprobs(submit.number, 0, True, 1, entries)
                w.scheduler.outputs(submit.number, [], logprobs=[told])
                w.scheduler.answer(submit.number, [70])

            w.scheduler.script = script
            if door == "http":
                answer = await w.complete(prompt=[70] * num, prompt_logprobs=top, max_tokens=1)
                told = answer.json()["choices"][0]["prompt_logprobs"]
                assert told[0] is None
                assert [len(one) for one in told[1:]] == [top + 1] * (num - 1)
                return
            request = GenerateRequest(input=[70] * num, prompt_logprobs=top, max_tokens=1)
            events = [e async for e in w.serving.client.stream(request) if hasattr(e, "first_position")]
            sizes = [len(one.entries) for one in events]
            assert [one.first_position for one in events] == [1 + sum(sizes[:index]) for index in range(len(sizes))]
            assert sum(sizes) == num - 1
            assert max(sizes) * (top + 2) <= 1024 + top + 2

    asyncio.run(main())


HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": [70] * 300, "prompt_logprobs": 20}),
        ("/v1/completions", {"prompt": [70] * 300, "echo": True, "logprobs": 20, "n": 64}),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "logprob_token_ids": [*range(60)], "n": 64}),
    ],
)
def test_logprobs_of_a_stream_are_written_in_turns_of_the_event_loop(web, read_items, monkeypatch, path, asked):
    ranked = tuple(range(60)), tuple(-1.0 - rank for rank in range(60))
    turns, written = 0, Counter[int]()

    def counting(encode):
        def count(item):
            encoded = encode(item)
            written[turns] += len(encoded)
            return encoded

        return count

    async def main():
        nonlocal turns
        async with web() as w:

            def script(submit) -> None:
                told = []
                if (top := submit.params.prompt_logprobs) > 0:
                    entry = PositionLogprobs(70, -0.5, 1, ranked[0][:top], ranked[1][:top])
                    told.append(OutputLogprobs(submit.number, 0, True, 1, (entry,) * 299))
                if named := len(submit.params.logprob_token_ids):
                    entry = PositionLogprobs(70, -0.5, 1, (), (), ranked[0][:named], ranked[1][:named])
                    told += [OutputLogprobs(submit.number, one, False, 0, (entry,)) for one in range(submit.n)]
                ends = [w.scheduler.finish(submit.number, 1, "length", index) for index in range(submit.n)]
                w.scheduler.outputs(submit.number, [(index, 0, 70) for index in range(submit.n)], ends, told)

            w.scheduler.script = script
            for module in (sse, answer, completion_stream):
                monkeypatch.setattr(module, "_encode", counting(msgspec.json.encode), raising=False)
            body = asked | {"max_tokens": 1, "stream": True, "temperature": 1.0}
            asking = asyncio.create_task(w.client.post(path, json=body))
            while not asking.done():
                turns += 1
                await asyncio.sleep(0)
            *chunks, done = read_items((await asking).text)
        assert done == "[DONE]"
        assert json.dumps(chunks).count("-20.0") >= 64

    asyncio.run(main())
    assert max(written.values()) < 128 << 10


def test_work_of_small_things_does_not_go_to_a_thread():
    async def main():
        pool = WorkPool("test", 1)
        names = [await pool.run(size, lambda _: threading.current_thread().name) for size in (0, LARGE_BYTES)]
        assert names[0] == threading.main_thread().name
        assert names[1].startswith("test")
        pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("field", ["arguments", "parameters", "chat_template_kwargs"])
@pytest.mark.parametrize("value", ["[" + "{}," * 20_000 + "{}]", "9" * 5000])
def test_json_within_a_chat_is_bounded_too(web, field, value):
    wide = '{"a": ' + value + "}"
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    if field == "arguments":
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": wide}}
        asked["messages"] = [{"role": "assistant", "tool_calls": [call]}]
    body = json.dumps(asked)
    if field == "parameters":
        function = '{"type": "function", "function": {"name": "f", "parameters": ' + wide + "}}"
        body = body[:-1] + ', "tools": [' + function + "]}"
    elif field == "chat_template_kwargs":
        body = body[:-1] + ', "chat_template_kwargs": ' + wide + "}"

    async def main():
        async with web() as w:
            w.answers([70])
            headers = {"content-type": "application/json"}
            answer = await w.client.post("/v1/chat/completions", content=body, headers=headers)
            # a number of thousands of digits is text to a template
            assert answer.status_code == (200 if field == "arguments" and value[0] == "9" else 400)

    asyncio.run(main())
