"""Tools and reasoning of `/api/chat`, with Ollama's own Python client and answers that are given."""

import asyncio
import json

import ollama
import pytest
from parts.clock import GUARD

from quire.frontend.http import sse
from quire.frontend.http.ollama.generation import Answer, as_message
from quire.proto import api
from quire.proto.messages.message import Usage

PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
LOOK = '<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
SAID = f'<think>hm</think>let me look{LOOK}<tool_call>{{"name": "go", "arguments": {{}}}}</tool_call>'
USER = {"role": "user", "content": "hello"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("look", "go")
]


def client_of(w) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=f"http://127.0.0.1:{w.port}", timeout=GUARD, trust_env=False, verify=False)


def shown(message: ollama.Message) -> tuple[str, str, list[tuple[str, dict]]]:
    calls = [(call.function.name, dict(call.function.arguments)) for call in message.tool_calls or ()]
    return message.thinking or "", message.content or "", calls


def test_thinking_text_and_calls_come_apart_whole_and_streamed(web, tokenizer):
    async def main():
        async with web(**PARSERS) as w:
            client = client_of(w)
            w.answers(tokenizer.encode(SAID).ids, "stop")
            whole = await client.chat("tiny:latest", [USER], tools=TOOLS)
            calls = [("look", {"a": 1}), ("go", {})]
            assert shown(whole.message) == ("hm", "let me look", calls)
            assert (whole.done_reason, whole.model) == ("stop", "tiny:latest")
            pieces = [piece async for piece in await client.chat("tiny", [USER], tools=TOOLS, stream=True)]
            parts = [shown(piece.message) for piece in pieces]
            assert "".join(part[0] for part in parts) == "hm"
            assert "".join(part[1] for part in parts) == "let me look"
            assert [call for part in parts for call in part[2]] == calls
            silent = await client.chat("tiny", [USER], tools=TOOLS, think=False)
            assert shown(silent.message) == ("", "let me look", calls)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_is_text(web, tokenizer, stream):
    async def main():
        async with web(**PARSERS) as w:
            w.answers(tokenizer.encode(SAID[: SAID.index("1}}")]).ids, "length")
            body = {"model": "tiny", "messages": [USER], "tools": TOOLS, "stream": stream}
            lines = (await w.client.post("/api/chat", json=body)).text.splitlines()
            messages = [json.loads(line)["message"] for line in lines]
            assert all("tool_calls" not in message for message in messages)
            assert "".join(message["content"] for message in messages).endswith('{"a": ')
            assert json.loads(lines[-1])["done_reason"] == "length"

    asyncio.run(main())


def test_a_conversation_with_calls_is_the_prompt_that_openais_route_makes_of_it(web):
    async def main():
        async with web(**PARSERS) as w:
            w.answers([75])
            call = {"function": {"name": "look", "arguments": {"a": 1}}}
            go = {"function": {"name": "go", "arguments": {}}}
            turns = [
                {"role": "assistant", "content": "", "tool_calls": [call, go]},
                {"role": "tool", "content": "there", "tool_name": "go"},
                {"role": "tool", "content": "seen"},
            ]
            await client_of(w).chat("tiny", [USER, *turns], tools=TOOLS)
            ids = {"look": "call_0", "go": "call_1"}
            theirs = [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": ids[one["function"]["name"]],
                            "type": "function",
                            "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])},
                        }
                        for one in (call, go)
                    ],
                },
                {"role": "tool", "content": "there", "name": "go", "tool_call_id": "call_1"},
                {"role": "tool", "content": "seen", "tool_call_id": "call_0"},
            ]
            fields = {"messages": [USER, *theirs], "tools": TOOLS}
            assert (await w.client.post("/v1/chat/completions", json=fields)).status_code == 200
            ours, openais = w.scheduler.submits[-2:]
            assert list(ours.prompt) == list(openais.prompt)

    asyncio.run(main())


def test_think_reaches_the_template_or_is_dropped_by_name(web):
    async def main():
        body = {"model": "tiny", "messages": [USER], "think": "low", "keep_alive": "5m"}
        async with web(**PARSERS) as w:
            w.answers([75])
            assert "think" not in (await w.client.post("/api/chat", json=body)).headers.get("x-quire-ignored", "")
        async with web(reasoning_parser="") as w:
            w.answers([75])
            assert "think" in (await w.client.post("/api/chat", json=body)).headers["x-quire-ignored"].split(", ")

    asyncio.run(main())


@pytest.mark.parametrize("said", [{}, {"num_predict": -1}, {"num_predict": 10_000}, {"num_predict": 7}])
def test_without_num_predict_an_answer_may_go_on_to_the_end_of_the_context(web, said):
    async def main():
        async with web() as w:
            w.answers([75])
            body = {"model": "tiny", "prompt": "hello", "raw": True, "options": said}
            assert (await w.client.post("/api/generate", json=body)).status_code == 200
            submit = w.scheduler.submits[-1]
            assert submit.params.max_tokens == (7 if said == {"num_predict": 7} else 512 - len(submit.prompt) // 4)

    asyncio.run(main())


def test_a_stream_that_waits_is_kept_open_by_lines_without_content(web, monkeypatch):
    """Lines of JSON know no comments, and clients parse every line."""
    monkeypatch.setattr(sse, "QUIET_SECONDS", 0.1)

    async def main():
        async with web() as w:
            stream = await client_of(w).generate("tiny", "hello", stream=True)
            first = asyncio.ensure_future(anext(stream))
            number = (await w.scheduler.submitted()).number
            w.scheduler.outputs(number, [(0, 0, 70)])
            pieces = [await first]
            while len(pieces) < 4:
                pieces.append(await asyncio.wait_for(anext(stream), GUARD))
            w.scheduler.outputs(number, [(0, 1, 71)], [w.scheduler.finish(number, 2)])
            pieces += [piece async for piece in stream]
            assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            assert sum(not piece.response for piece in pieces) >= 3
            assert len("".join(piece.response for piece in pieces)) > 0

    asyncio.run(main())


def test_a_stream_that_fails_ends_with_an_error_in_ollamas_shape(web):
    async def main():
        async with web() as w:
            w.scheduler.script = lambda submit: w.scheduler.answer(submit.number, [75], "error")
            body = {"model": "tiny", "messages": [USER]}
            lines = (await w.client.post("/api/chat", json=body)).text.splitlines()
            assert list(json.loads(lines[-1])) == ["error"]

    asyncio.run(main())


def test_a_result_whose_call_is_gone_is_taken(web):
    async def main():
        async with web() as w:
            w.answers([75])
            client = client_of(w)
            for turns in ([USER], [USER, {"role": "tool", "tool_name": "look", "content": "1"}]):
                answer = await client.chat("tiny", [*turns, {"role": "tool", "content": "5"}])
                assert answer.done

    asyncio.run(main())


@pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", None])
def test_a_body_needs_no_media_type_as_curl_sends_it(web, media_type):
    async def main():
        async with web() as w:
            w.answers([75])
            headers = {} if media_type is None else {"content-type": media_type}
            body = json.dumps({"model": "tiny", "messages": [USER], "prompt": "hello", "input": "hello"})
            for path in ("chat", "generate", "show"):
                assert (await w.client.post(f"/api/{path}", content=body, headers=headers)).status_code == 200
                foreign = {**headers, "origin": "http://elsewhere.example"}  # a form of somebody's page
                assert (await w.client.post(f"/api/{path}", content=body, headers=foreign)).status_code == 403

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [(0, "unload"), ("0", "unload"), ("0s", "unload"), (0.0, "unload"), ("0h", "unload"), ("5m", "load"), (-1, "load"),
     (10, "load"), (None, "load"), ("0" * 100, "load"), ([0], "load")],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_keep_alive_without_a_prompt_says_what_it_was_and_changes_nothing(web, path, keep_alive, reason):
    async def main():
        async with web() as w:
            for _ in range(2):
                answer = await w.client.post(path, json={"model": "tiny", "keep_alive": keep_alive})
                assert (answer.status_code, answer.json()["done_reason"]) == (200, reason)
            assert w.scheduler.submits == []
            assert (await w.client.get("/api/ps")).json()["models"][0]["name"] == "tiny:latest"

    asyncio.run(main())


def test_an_answer_took_no_less_than_its_parts():
    """A request that comes late in a turn of the scheduler has begun earlier on the scheduler's clock than on ours."""
    usage = Usage(1, 0, 1, queue_seconds=1.0, prefill_seconds=2.0, decode_seconds=3.0)
    output = api.Output("a", [1], [], api.Finished(0, "stop", usage))
    whole = Answer("tiny", as_message).whole(api.Generation("id", "tiny", 1, [output]))
    assert whole["total_duration"] == 6_000_000_000
    assert [whole[f"{part}_duration"] for part in ("load", "prompt_eval", "eval")] == [10**9, 2 * 10**9, 3 * 10**9]
