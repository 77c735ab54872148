"""/v1/chat/completions: OpenAI's shapes, whole and streamed, and every refusal by name."""

import asyncio
import json

import pytest

from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

USER = {"role": "user", "content": "hello"}
CALL = {"function": {"name": "f", "arguments": "{}"}}
PATH = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def run(main) -> None:
    asyncio.run(main())


async def ask(w, *messages, **fields):
    return await w.client.post(PATH, json={"messages": list(messages) or [USER], **fields})


def test_an_answer_has_openais_shape(web, tokenizer):
    async def main():
        tokens = tokenizer.encode("hello world").ids
        async with web() as w:
            w.answers(tokens, "stop")
            response = await w.client.post(PATH, json={"messages": [USER]}, headers={"x-request-id": "job-7"})
            answer = response.json()
            assert (answer["id"], answer["object"], answer["model"]) == ("chatcmpl-job-7", "chat.completion", "tiny")
            assert answer["system_fingerprint"].startswith("fp_")
            assert answer["choices"] == [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hello world"},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ]
            assert answer["usage"]["completion_tokens"] == len(tokens)
            assert (await w.scheduler.submitted()).label == "job-7"

    run(main)


def test_a_stream_is_role_then_text_then_end_then_usage(web, tokenizer, read_items):
    async def main():
        async with web() as w:
            w.answers(tokenizer.encode("the quick brown fox").ids)
            response = await ask(w, stream=True, n=2, temperature=0.5, stream_options={"include_usage": True})
            *chunks, usage, done = read_items(response.text)
            assert done == "[DONE]"
            assert (usage["choices"], usage["usage"]["prompt_tokens"]) == ([], 3)
            assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
            assert len({chunk["id"] for chunk in chunks}) == 1
            assert all(chunk["usage"] is None for chunk in chunks)
            for index in range(2):
                first, *middle, last = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
                assert first["delta"] == {"role": "assistant", "content": ""}
                assert "".join(choice["delta"]["content"] for choice in middle) == "the quick brown fox"
                assert {choice["finish_reason"] for choice in (first, *middle)} == {None}
                assert (last["delta"], last["finish_reason"]) == ({}, "length")

    run(main)


def test_every_chunk_may_say_the_usage_so_far(web, tokenizer, read_items):
    async def main():
        tokens = tokenizer.encode("the quick brown fox").ids
        async with web() as w:
            w.answers(tokens)
            response = await ask(w, stream=True, stream_options={"continuous_usage_stats": True})
            *chunks, _ = read_items(response.text)
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert (counts[0], counts[-1], counts) == (0, len(tokens), sorted(counts))
            assert not any("token_ids" in chunk["choices"][0] for chunk in chunks)

    run(main)


def test_logprobs_say_token_bytes_and_alternatives(web):
    async def main():
        async with web() as w:

            def script(submit) -> None:
                entry = PositionLogprobs(75, -0.5, 1, (75, 76), (-0.5, -2.0))
                logprobs = [OutputLogprobs(submit.number, 0, False, 0, (entry,))]
                w.scheduler.outputs(submit.number, [(0, 0, 75)], [w.scheduler.finish(submit.number, 1)], logprobs)

            w.scheduler.script = script
            answer = (await ask(w, logprobs=True, top_logprobs=2)).json()
            (entry,) = answer["choices"][0]["logprobs"]["content"]
            assert (entry["logprob"], entry["bytes"]) == (-0.5, list(entry["token"].encode()))
            assert [one["logprob"] for one in entry["top_logprobs"]] == [-0.5, -2.0]
            assert (await w.scheduler.submitted()).params.logprobs == 2
            shown = (await ask(w, logprobs=True, return_tokens_as_token_ids=True)).json()
            assert shown["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:75"

    run(main)


def test_messages_mean_the_same_however_they_are_written(web, tokenizer):
    async def main():
        forms = [
            [{"role": "system", "content": "be brief"}, USER],
            [{"role": "developer", "content": "be brief"}, USER],
            [{"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]}, USER],
        ]
        async with web() as w:
            w.answers([75])
            for form in forms:
                assert (await ask(w, *form)).status_code == 200
            assert len({submit.prompt for submit in w.scheduler.submits}) == 1

    run(main)


def test_a_conversation_with_calls_comes_back_as_it_was_answered(web):
    async def main():
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        assistant = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "reasoning_content": "hm",
            "refusal": None,
        }
        async with web() as w:
            w.answers([75])
            response = await ask(
                w, USER, assistant, {"role": "tool", "tool_call_id": "c1", "content": "42"}, tools=[TOOL]
            )
            assert response.status_code == 200, response.text

    run(main)


def test_the_newer_name_of_the_token_limit_counts(web):
    async def main():
        async with web() as w:
            w.answers([75])
            await ask(w, max_completion_tokens=5)
            await ask(w, max_completion_tokens=6, max_tokens=6)
            assert [submit.params.max_tokens for submit in w.scheduler.submits] == [5, 6]

    run(main)


def test_a_failed_output_among_others_says_so_and_a_failed_request_is_an_error(web, read_items):
    async def main():
        async with web() as w:

            def script(submit) -> None:
                w.scheduler.answer(submit.number, [75], "error", 0, error="NUMERICAL")
                if submit.n > 1:
                    w.scheduler.answer(submit.number, [75], "stop", 1)

            w.scheduler.script = script
            both = (await ask(w, n=2, temperature=0.5)).json()["choices"]
            assert [choice["finish_reason"] for choice in both] == ["error", "stop"]
            assert both[0]["error"]["code"] == "numerical"
            alone = await ask(w)
            assert (alone.status_code, alone.json()["error"]["code"]) == (500, "numerical")
            *_, last = read_items((await ask(w, stream=True)).text)
            assert last["error"]["code"] == "numerical"

    run(main)


def test_a_refusal_of_the_scheduler_has_its_own_status_even_for_a_stream(web):
    async def main():
        async with web() as w:

            def script(submit) -> None:
                finish = w.scheduler.finish(submit.number, 0, "rejected", error="QUEUE_FULL", retry_after_seconds=2.0)
                w.scheduler.outputs(submit.number, [], [finish])

            w.scheduler.script = script
            response = await ask(w, stream=True)
            assert (response.status_code, response.headers["retry-after"]) == (429, "2")

    run(main)


SAID = '<think>hm</think>let me look<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
"""In the formats of the parsers qwen3 and hermes."""
PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
IN_TAGS = """<think>hm</think>let me look<tool_call>
<function=look>
<parameter=a>
1
</parameter>
</function>
</tool_call>"""
OTHER_NAMES = {"reasoning_parser": "nemotron_v3", "tool_call_parser": "qwen3_xml"}


@pytest.mark.parametrize(("parsers", "said"), [(PARSERS, SAID), (OTHER_NAMES, IN_TAGS)])
def test_reasoning_and_calls_are_fields_of_their_own(web, tokenizer, read_items, parsers, said):
    async def main():
        async with web(**parsers) as w:
            w.answers(tokenizer.encode(said).ids, "stop")
            answer = (await ask(w, tools=[TOOL])).json()
            (choice,) = answer["choices"]
            thought = len(tokenizer.encode("hm").ids)
            assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": thought}
            message = choice["message"]
            assert (message["content"], message["reasoning_content"], message["reasoning"]) == (
                "let me look",
                "hm",
                "hm",
            )
            (call,) = message["tool_calls"]
            assert (call["type"], call["function"]["name"]) == ("function", "look")
            assert json.loads(call["function"]["arguments"]) == {"a": 1}
            assert choice["finish_reason"] == "tool_calls"
            *chunks, _ = read_items((await ask(w, tools=[TOOL], stream=True)).text)
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
            assert "".join(delta.get("content", "") for delta in deltas) == "let me look"
            first, *rest = [one for delta in deltas for one in delta.get("tool_calls", ())]
            assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "look")
            assert first["id"]
            assert not any("id" in one or "name" in one["function"] for one in rest)
            arguments = "".join(one["function"]["arguments"] for one in (first, *rest))
            assert json.loads(arguments) == {"a": 1}
            hidden = (await ask(w, tools=[TOOL], include_reasoning=False)).json()["choices"][0]["message"]
            assert "reasoning_content" not in hidden

    run(main)


def test_reasoning_of_outputs_that_come_by_turns_is_counted_one_after_the_other(web, tokenizer, read_items):
    """Read as it came, it would be "hheelllloo"."""
    tokens = [tokenizer.token_to_id(letter) for letter in "<think>hello</think>hm"]
    usage = {"n": 2, "stream_options": {"include_usage": True}}

    async def by_turns(w) -> None:
        number = (await w.scheduler.submitted(len(w.scheduler.submits) + 1)).number
        await w.until(lambda: number in w.server.scheduler._streams._by_number)
        stream = w.server.scheduler._streams._by_number[number]
        for position, token in enumerate(tokens):
            ends = [w.scheduler.finish(number, len(tokens), "stop", index) for index in (0, 1)]
            both = [(index, position, token) for index in (0, 1)]
            w.scheduler.outputs(number, both, ends if position + 1 == len(tokens) else [])
            await w.until(lambda end=position + 1: all(one._num_read == end for one in stream.outputs))

    async def main():
        async with web(**PARSERS) as w:
            answering = asyncio.create_task(by_turns(w))
            *_, last, _ = read_items((await ask(w, stream=True, **usage)).text)
            await answering
            counted = 2 * len(tokenizer.encode("hello").ids)
            assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": counted}

    run(main)


PART = {"type": "image_url", "image_url": {"url": "x"}}
NAMED = {"type": "function", "function": {"name": "x"}}
REFUSALS = [
    ({"messages": []}, "empty_prompt", "messages"),
    ({"messages": [{"role": "", "content": "x"}]}, "invalid_parameter", "messages[0].role"),
    ({"messages": [{**USER, "function_call": CALL["function"]}]}, "invalid_parameter", "messages[0].function_call"),
    ({"messages": [{"role": "user"}]}, "invalid_parameter", "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_parameter", "messages[0].tool_call_id"),
    ({"messages": [{**USER, "tool_calls": [CALL]}]}, "invalid_parameter", "messages[0].tool_calls"),
    ({"messages": [{"role": "user", "content": [PART]}]}, "unsupported", "messages[0].content[0]"),
    ({"messages": [{**USER, "images": ["aGk="]}]}, "unsupported", "messages[0].images"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "unsupported", "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "invalid_parameter",
        "messages[0].content[0].text",
    ),
    ({"tools": [{"type": "web_search"}]}, "unsupported", "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "invalid_parameter", "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_parameter", "tools[0].function.name"),
    ({"tool_choice": "required"}, "invalid_parameter", "tool_choice"),
    ({"tool_choice": NAMED, "tools": [TOOL]}, "invalid_parameter", "tool_choice"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_parameter", "max_tokens"),
    ({"max_completion_tokens": 9999}, "context_length_exceeded", "max_completion_tokens"),
    ({"top_logprobs": 2}, "invalid_parameter", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_parameter", "top_logprobs"),
    ({"functions": [{"name": "a b"}]}, "invalid_parameter", "functions[0].name"),
    ({"functions": [], "tools": [TOOL]}, "invalid_parameter", "functions"),
    ({"function_call": {"name": "look"}}, "invalid_parameter", "function_call"),
    ({"function_call": {"name": "f"}, "functions": [TOOL["function"]]}, "invalid_parameter", "function_call"),
    ({"documents": [{"text": "x"}]}, "unsupported", "documents"),
    ({"documents": ["x"]}, "invalid_parameter", "documents"),
    ({"response_format": {"type": "text", "schema": {}}}, "invalid_parameter", "response_format.schema"),
    ({"chat_template": "{{ x }}"}, "unsupported", "chat_template"),
    ({"echo": True}, "unsupported", "echo"),
    ({"audio": {}}, "unsupported", "audio"),
    ({"modalities": ["audio"]}, "invalid_parameter", "modalities[0]"),
    ({"chat_template_kwargs": {"messages": "x"}}, "invalid_parameter", "chat_template_kwargs"),
    (
        {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"},
        "invalid_parameter",
        "reasoning_effort",
    ),
    ({"continue_final_message": True, "add_generation_prompt": True}, "invalid_parameter", "continue_final_message"),
    ({"stream_options": {"include_usage": True}}, "invalid_parameter", "stream_options"),
    ({"mesages": [USER]}, "unknown_field", "mesages"),
    ({"mirostat": 2}, "unsupported", "mirostat"),
]


def test_what_is_wrong_or_not_offered_is_refused_by_name(web):
    async def main():
        async with web() as w:
            wrong = []
            for fields, code, param in REFUSALS:
                response = await w.client.post(PATH, json={"messages": [USER], **fields})
                error = response.json().get("error", {})
                if (response.status_code, error.get("code"), error.get("param")) != (400, code, param):
                    wrong.append((fields, response.text))
            assert wrong == []
            assert w.scheduler.submits == []

    run(main)


@pytest.mark.parametrize("field", ["x-request-id", "request_id"])
def test_the_label_of_a_request_is_what_the_client_calls_it(web, field):
    async def main():
        async with web() as w:
            w.answers([75])
            headers = {field: "mine"} if field.startswith("x-") else {}
            fields = {} if headers else {field: "mine"}
            answer = await w.client.post(PATH, json={"messages": [USER], **fields}, headers=headers)
            assert answer.json()["id"] == "chatcmpl-mine"
            assert (await w.scheduler.submitted()).label == "mine"

    run(main)
