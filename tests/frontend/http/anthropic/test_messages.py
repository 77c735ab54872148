"""/v1/messages: Anthropic's shapes, whole and streamed, errors included."""

import asyncio
import json

import pytest

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def run(main) -> None:
    asyncio.run(main())


async def ask(w, path="/v1/messages", **fields):
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    return await w.client.post(path, json={"model": "tiny", "messages": [USER], **limit, **fields})


def named(text: str) -> list[tuple[str, dict[str, object]]]:
    """(event name, data) of a stream."""
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_an_answer_has_anthropics_shape(web, tokenizer):
    async def main():
        tokens = tokenizer.encode("hello world").ids
        async with web() as w:
            w.answers(tokens, "stop")
            answer = (await ask(w, temperature=0.5, top_k=5, metadata={"user_id": "u"})).json()
            assert answer.pop("id").startswith("msg_")
            assert answer == {
                "type": "message",
                "role": "assistant",
                "model": "tiny",
                "content": [{"type": "text", "text": "hello world"}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {
                    "input_tokens": 2,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 1,
                    "output_tokens": len(tokens),
                },
            }
            params = (await w.scheduler.submitted()).params
            assert (params.max_tokens, params.top_k) == (9, 5)

    run(main)


def test_a_stream_opens_and_closes_its_blocks_and_says_why_it_stopped(web, tokenizer):
    async def main():
        async with web() as w:
            w.answers(tokenizer.encode("the quick brown fox").ids)
            response = await ask(w, stream=True, stop_sequences=["brown"])
            events = named(response.text)
            assert all(name == data["type"] for name, data in events)
            assert [name for name, _ in events if name != "content_block_delta"] == [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            deltas = [data for name, data in events if name == "content_block_delta"]
            assert "".join(data["delta"]["text"] for data in deltas) == "the quick "
            assert events[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "brown"}

    run(main)


def test_results_of_tools_are_turns_of_their_own_and_a_last_assistant_turn_is_continued(web):
    async def main():
        use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]}
        turns = [
            USER,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use]},
            {
                "role": "user",
                "content": [result, {"type": "text", "text": "so?", "cache_control": {"type": "ephemeral"}}],
            },
        ]
        async with web() as w:
            w.answers([75])
            system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
            response = await ask(w, messages=turns, tools=[TOOL], system=system, tool_choice={"type": "auto"})
            assert response.status_code == 200, response.text
            begun = [USER, {"role": "assistant", "content": "the quick"}]
            assert (await ask(w, messages=begun)).status_code == 200
            prompt = w.scheduler.submits[-1].prompt
            w.scheduler.submits.clear()
            chat = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
            await w.client.post("/v1/chat/completions", json=chat)
            assert w.scheduler.submits[0].prompt == prompt

    run(main)


def test_the_tokens_counted_are_the_tokens_submitted(web):
    async def main():
        async with web() as w:
            w.answers([75])
            counted = (await ask(w, "/v1/messages/count_tokens", system="be brief")).json()
            await ask(w, system="be brief")
            assert counted == {"input_tokens": len((await w.scheduler.submitted()).prompt) // 4}

    run(main)


SAID = '<think>hm</think>let me look<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
"""In the formats of the parsers qwen3 and hermes."""
PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}


def test_thinking_text_and_calls_are_blocks_of_their_own(web, tokenizer):
    async def main():
        async with web(**PARSERS) as w:
            w.answers(tokenizer.encode(SAID).ids, "stop")
            thinking = {"type": "enabled", "budget_tokens": 1024}
            answer = (await ask(w, tools=[TOOL], thinking=thinking)).json()
            thought, text, use = answer["content"]
            assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
            assert (text, use["input"]) == ({"type": "text", "text": "let me look"}, {"a": 1})
            assert answer["stop_reason"] == "tool_use"
            events = named((await ask(w, tools=[TOOL], thinking=thinking, stream=True)).text)
            starts = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
            assert starts == ["thinking", "text", "tool_use"]
            deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
            partial = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
            assert json.loads(partial) == {"a": 1}
            for config in (None, {"type": "disabled"}):
                answer = (await ask(w, tools=[TOOL], thinking=config)).json()
                assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]

    run(main)


@pytest.mark.parametrize(
    ("text", "end", "reason"),
    [
        ("hello", "stop", "end_turn"),
        ("hello", "length", "max_tokens"),
        (SAID, "stop", "tool_use"),
        ("hello stop here", "length", "stop_sequence"),
        ("hello", "abort", "refusal"),
    ],
)
def test_an_answer_says_why_it_ended_whole_and_streamed(web, tokenizer, text, end, reason):
    async def main():
        async with web(**PARSERS) as w:
            w.answers(tokenizer.encode(text).ids, end)
            fields = {"tools": [TOOL], "stop_sequences": ["stop"], "max_tokens": 200}
            whole = (await ask(w, **fields)).json()
            events = named((await ask(w, **fields, stream=True)).text)
            streamed = next(data["delta"] for name, data in events if name == "message_delta")
            word = "stop" if reason == "stop_sequence" else None
            assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, word)
            assert streamed == {"stop_reason": reason, "stop_sequence": word}

    run(main)


def test_a_call_that_was_cut_off_is_text(web, tokenizer):
    async def main():
        async with web(**PARSERS) as w:
            w.answers(tokenizer.encode(SAID[: SAID.index("1}}")]).ids)
            answer = (await ask(w, tools=[TOOL])).json()
            assert [block["type"] for block in answer["content"]] == ["text"]
            assert answer["content"][0]["text"].endswith('{"a": ')
            assert answer["stop_reason"] == "max_tokens"

    run(main)


RESULT = {"type": "tool_result", "tool_use_id": "t1"}
REFUSALS = [
    ({"messages": []}, 400, "messages: must not be empty"),
    ({"max_tokens": None}, 400, "max_tokens: "),
    ({"max_tokens": 0}, 400, "max_tokens: "),
    ({"temperature": 1.5}, 400, "temperature: "),
    ({"stop": ["x"]}, 400, "stop: is not supported"),
    ({"stop_sequences": [""]}, 400, "stop_sequences: "),
    ({"n": 2}, 400, "n: is not supported"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "tools[0].type: 'bash_20250124' is not supported"),
    ({"tools": [{"name": "x", "input_schema": 1}]}, 400, "tools[0].input_schema: "),
    ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, 400, "tool_choice.name: is missing"),
    ({"tool_choice": {"type": "any"}}, 400, "tool_choice: needs tools"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
        400,
        "tool_choice: needs tools",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        400,
        "messages[0].content[0].source.type",
    ),
    (
        {"messages": [{"role": "user", "content": [{**RESULT, "content": [{"type": "document", "source": {}}]}]}]},
        400,
        "messages[0].content[0].content[0].type: 'document' is not supported",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, 400, "messages[0].content[0].type"),
    ({"temprature": 1}, 400, "temprature: is unknown to this server; did you mean temperature?"),
    ({"model": "other"}, 404, "model 'other' is not served here"),
]


def test_refusals_have_anthropics_shape_also_before_a_stream(web):
    async def main():
        async with web() as w:
            wrong = []
            for fields, status, message in REFUSALS:
                for stream in (False, True):
                    response = await ask(w, **{**fields, "stream": stream})
                    body = response.json()
                    kind = {400: "invalid_request_error", 404: "not_found_error"}[status]
                    found = (response.status_code, body["type"], body.get("error", {}).get("type"), body["request_id"])
                    expected = (status, "error", kind, response.headers["x-request-id"])
                    if found != expected or not body["error"]["message"].startswith(message):
                        wrong.append((fields, response.text))
            assert wrong == []
            assert w.scheduler.submits == []

    run(main)


def test_a_stream_that_breaks_ends_in_an_error_event(web):
    async def main():
        async with web() as w:

            def script(submit) -> None:
                w.scheduler.outputs(submit.number, [(0, 0, 75)])
                w.scheduler.outputs(
                    submit.number, [], [w.scheduler.finish(submit.number, 1, "error", error="NUMERICAL")]
                )

            w.scheduler.script = script
            name, data = named((await ask(w, stream=True)).text)[-1]
            assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")

    run(main)
