"""/v1/responses: the response object, its events and its refusals."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from asked import PATH, ask, events, run

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def test_a_response_is_answered_stored_retrieved_and_deleted(web, tokenizer, tmp_path):
    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            w.answers(tokenizer.encode("hello world").ids, "stop")
            made = (await ask(w, instructions="be brief", metadata={"a": "b"}, max_output_tokens=9)).json()
            assert (made["object"], made["status"], made["error"]) == ("response", "completed", None)
            (item,) = made["output"]
            assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
            assert item["content"] == [
                {"type": "output_text", "text": "hello world", "annotations": [], "logprobs": []}
            ]
            assert (made["instructions"], made["metadata"], made["temperature"]) == ("be brief", {"a": "b"}, 0.5)
            assert made["usage"]["total_tokens"] == 3 + made["usage"]["output_tokens"]
            assert (await w.scheduler.submitted()).label == made["id"]
            path = f"{PATH}/{made['id']}"
            assert (await w.client.get(path)).json() == made
            listed = (await w.client.get(f"{path}/input_items")).json()
            assert listed["data"][0]["content"] == [{"type": "input_text", "text": "hello"}]
            assert (await w.client.delete(path)).json()["deleted"] is True
            assert (await w.client.get(path)).status_code == 404

    run(main)


def test_what_is_not_to_be_stored_is_not(web):
    async def main():
        async with web() as w:
            w.answers([75])
            made = (await ask(w, store=False)).json()
            assert (made["store"], made["status"]) == (False, "incomplete")
            assert made["incomplete_details"] == {"reason": "max_output_tokens"}
            assert (await w.client.get(f"{PATH}/{made['id']}")).status_code == 404

    run(main)


def test_a_stream_tells_the_response_as_it_grows(web, tokenizer):
    async def main():
        async with web() as w:
            w.answers(tokenizer.encode("the quick brown fox").ids, "stop")
            told = events((await ask(w, stream=True)).text)
            assert [event["sequence_number"] for event in told] == list(range(len(told)))
            assert [event["type"] for event in told if event["type"] != "response.output_text.delta"] == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ]
            deltas = [event["delta"] for event in told if event["type"] == "response.output_text.delta"]
            assert "".join(deltas) == "the quick brown fox"
            assert told[0]["response"]["output"] == told[2]["item"]["content"] == []
            last = told[-1]["response"]
            assert last["output"] == [told[-2]["item"]]
            assert (await w.client.get(f"{PATH}/{last['id']}")).json() == last

    run(main)


def test_a_stream_that_breaks_ends_in_a_failed_response(web):
    async def main():
        async with web() as w:

            def script(submit) -> None:
                w.scheduler.outputs(submit.number, [(0, 0, 75)])
                w.scheduler.outputs(
                    submit.number, [], [w.scheduler.finish(submit.number, 1, "error", error="NUMERICAL")]
                )

            w.scheduler.script = script
            last = events((await ask(w, stream=True)).text)[-1]
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
            assert last["response"]["error"]["code"] == "server_error"
            assert (await ask(w)).status_code == 500

    run(main)


def test_a_response_continues_another_as_if_its_items_had_been_sent_again(web, tokenizer):
    async def main():
        async with web() as w:
            w.answers(tokenizer.encode("hello world").ids, "stop")
            first = (await ask(w, instructions="forget me")).json()
            second = (
                await ask(w, input=[{"role": "user", "content": "more"}], previous_response_id=first["id"])
            ).json()
            third = await ask(w, input="again", previous_response_id=second["id"])
            assert third.status_code == 200, third.text
            items = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}]
            await ask(w, input=[*items, *second["output"], {"role": "user", "content": "again"}])
            assert w.scheduler.submits[2].prompt == w.scheduler.submits[3].prompt

    run(main)


@pytest.mark.parametrize("order", ["rmc", "rcm", "crm", "cmr", "Mcrm"])
def test_a_history_of_reasoning_and_calls_is_one_turn_of_the_assistant_in_any_order(web, order):
    def said(text):
        return {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": text}]}

    async def main():
        written = {
            "r": {
                "type": "reasoning",
                "id": "r1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            "m": said("it" if "M" in order else "wait"),
            "M": said("wa"),
            "c": {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        }
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            *(written[one] for one in order),
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
        ]
        call = {"id": "c1", "function": {"name": "look", "arguments": "{}"}}
        turns = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "wait", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
        async with web() as w:
            w.answers([75])
            response = await ask(w, input=items, tools=[TOOL], tool_choice="none")
            assert response.status_code == 200, response.text
            await w.client.post("/v1/chat/completions", json={"messages": turns})
            assert w.scheduler.submits[0].prompt == w.scheduler.submits[1].prompt

    run(main)


SAID = '<think>hm</think>let me look<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
"""In the formats of the parsers qwen3 and hermes."""
PARSERS = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}


def test_reasoning_text_and_calls_are_items_of_their_own(web, tokenizer):
    async def main():
        async with web(**PARSERS) as w:
            w.answers(tokenizer.encode(SAID).ids, "stop")
            made = (await ask(w, tools=[TOOL])).json()
            reasoning, message, call = made["output"]
            assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
            assert message["content"][0]["text"] == "let me look"
            assert (call["name"], json.loads(call["arguments"])) == ("look", {"a": 1})
            told = events((await ask(w, tools=[TOOL], stream=True)).text)
            kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in told))
            assert kinds == [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "reasoning_text.delta",
                "reasoning_text.done",
                "content_part.done",
                "output_item.done",
                "output_text.delta",
                "output_text.done",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "completed",
            ]
            assert [event["output_index"] for event in told if event["type"] == "response.output_item.done"] == [
                0,
                1,
                2,
            ]
            assert made["usage"]["output_tokens_details"]["reasoning_tokens"] == len(tokenizer.encode("hm").ids)
            again = await ask(w, input="so?", tools=[TOOL], previous_response_id=made["id"])
            assert again.status_code == 200, again.text

    run(main)


REFUSALS = [
    ({"input": []}, "empty_prompt", "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_parameter", "input[0].id"),
    ({"input": [{"type": "item_reference"}]}, "unsupported", "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "invalid_parameter", "input[0].content[0].image_url"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "invalid_parameter", "input[0].call_id"),
    ({"tools": [{"type": "weather"}]}, "unsupported", "tools[0].type"),
    ({"tools": [{"type": "tool_search", "execution": "server"}]}, "invalid_parameter", "tools[0].execution"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a b"}]}]},
     "invalid_parameter", "tools[0].tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [TOOL] * 129}]}, "invalid_parameter", "tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "unsupported", "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "invalid_parameter", "tool_choice.name"),
    ({"max_tool_calls": 0}, "invalid_parameter", "max_tool_calls"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "invalid_parameter", "tools[0].name"),
    ({"tool_choice": "required"}, "invalid_parameter", "tool_choice"),
    ({"background": True, "store": False}, "invalid_parameter", "background"),
    ({"background": True, "input": "x" * 600}, "context_length_exceeded", "max_output_tokens"),
    ({"truncation": "all"}, "invalid_parameter", "truncation"),
    ({"truncation": "auto", "input": "x" * 600}, "context_length_exceeded", "max_output_tokens"),
    ({"max_output_tokens": 0}, "invalid_parameter", "max_output_tokens"),
    ({"max_tokens": 5}, "unsupported", "max_tokens"),
    ({"top_logprobs": 21}, "invalid_parameter", "top_logprobs"),
    ({"metadata": {"a": "x" * 513}}, "invalid_parameter", "metadata"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "invalid_grammar", "text.format.schema"),
    ({"previous_response_id": "../x"}, "invalid_parameter", "previous_response_id"),
    ({"conversation": "x"}, "unsupported", "conversation"),
    ({"maxOutputTokens": 1}, "unknown_field", "maxOutputTokens"),
]  # fmt: skip


def test_what_is_wrong_or_not_offered_is_refused_by_name(web):
    async def main():
        async with web() as w:
            wrong = []
            for fields, code, param in REFUSALS:
                response = await ask(w, **fields)
                error = response.json().get("error") or {}
                if (response.status_code, error.get("code"), error.get("param")) != (400, code, param):
                    wrong.append((fields, response.text))
            assert wrong == []
            assert w.scheduler.submits == []

    run(main)


def test_only_ids_of_stored_responses_are_found(web):
    async def main():
        async with web() as w:
            w.answers([75])
            for id in ("resp_" + "0" * 32, "resp_1", "resp_" + "A" * 32, "%2e%2e"):
                for answer in (await w.client.get(f"{PATH}/{id}"), await w.client.delete(f"{PATH}/{id}")):
                    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_request")
            id = (await ask(w)).json()["id"]
            assert (await w.client.post(f"{PATH}/{id}/cancel")).json()["error"]["param"] == "id"
            assert (await w.client.get(f"{PATH}/{id}?stream=true")).json()["error"]["param"] == "stream"
            for parameters, param in (("stream=1", "stream"), ("starting_after=1", "starting_after"), ("x=1", "x")):
                assert (await w.client.get(f"{PATH}/{id}?{parameters}")).json()["error"]["param"] == param
            compact = (await w.client.post(f"{PATH}/compact", json={"input": "x"})).json()["error"]
            assert compact["code"] == "unsupported"
            assert "ask /v1/responses for a summary" in compact["message"]

    run(main)


def test_input_items_are_listed_in_pages(web):
    async def main():
        async with web() as w:
            w.answers([75])
            items = [{"role": "user", "content": str(n)} for n in range(5)]
            id = (await ask(w, input=items)).json()["id"]
            first = (await w.client.get(f"{PATH}/{id}/input_items?limit=2")).json()
            assert [one["content"][0]["text"] for one in first["data"]] == ["4", "3"]
            assert first["has_more"] is True
            rest = (await w.client.get(f"{PATH}/{id}/input_items?after={first['last_id']}")).json()
            assert [one["content"][0]["text"] for one in rest["data"]] == ["2", "1", "0"]
            assert rest["has_more"] is False

    run(main)
