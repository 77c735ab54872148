"""Answers that OpenAI's client read come back as input, as the client dumps them: nulls, new fields and all."""

import json

import pytest
from openai import OpenAI
from parts.clock import GUARD
from pydantic import BaseModel

QUESTION = {"role": "user", "content": "where is it?"}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION = {"type": "function", "name": "look", "parameters": SCHEMA}
TOOLS = [
    {"type": "namespace", "name": "eyes", "description": "To see.", "tools": [FUNCTION]},
    {"type": "custom", "name": "patch"},
]
SAID = "<think>\nhm\n</think>\n\nI look."


@pytest.fixture
def client(scripted):
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0, timeout=GUARD) as client:
        yield client


def outputs(items: list[dict[str, object]]) -> list[dict[str, object]]:
    """An output for each call."""
    return [
        {
            "type": f"{one['type'].removesuffix('_call')}_call_output",
            "call_id": one["call_id"],
            "output": "on the shelf",
        }
        for one in items
        if one["type"].endswith("_call")
    ]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_response_s_items_are_input(scripted, calls, client, is_streamed):
    both = calls("eyes__look") + calls("patch", input='a "line"\n')
    scripted.answers(("where is it", SAID + both), ("on the shelf", "There."))
    fields = {"model": "scripted", "input": [QUESTION], "tools": TOOLS, "store": False}
    if is_streamed:
        with client.responses.stream(**fields) as stream:
            kinds = {event.type for event in stream}
            made = stream.get_final_response()
        assert {"response.reasoning_text.delta", "response.custom_tool_call_input.done"} <= kinds
    else:
        made = client.responses.create(**fields)
    assert [(item.type, getattr(item, "namespace", None)) for item in made.output] == [
        ("reasoning", None), ("message", None), ("function_call", "eyes"), ("custom_tool_call", None)]  # fmt: skip
    assert made.output[3].input == 'a "line"\n'
    items = [item.model_dump() for item in made.output]
    assert "async_" in items[2], "the client's newest field, which is null"
    fields["input"] = [QUESTION, *items, *outputs(items)]
    assert client.responses.create(**fields).output_text == "There."
    named = client.responses.with_raw_response.create(**fields).headers.get("x-quire-ignored", "")
    assert "async" not in named


class Place(BaseModel):
    room: str


def test_a_parsed_response_s_items_are_input(scripted, client):
    scripted.answers(("where is it", json.dumps({"room": "kitchen"})), ("sure", "Yes."))
    fields = {"model": "scripted", "text_format": Place, "store": False}
    made = client.responses.parse(input=[QUESTION], **fields)
    assert made.output_parsed == Place(room="kitchen")
    items = [item.model_dump() for item in made.output]
    again = [QUESTION, *items, {"role": "user", "content": "sure?"}]
    assert client.responses.create(model="scripted", input=again, store=False).output_text == "Yes."


def test_a_chat_s_message_is_input(scripted, calls, client):
    scripted.answers(("where is it", SAID + calls("look")), ("on the shelf", "There."))
    function = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    fields = {"model": "scripted", "tools": [function]}
    message = client.chat.completions.create(messages=[QUESTION], **fields).choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "on the shelf"}
    for turn in (message, message.model_dump(), message.to_dict()):
        answer = client.chat.completions.create(messages=[QUESTION, turn, result], **fields)
        assert answer.choices[0].message.content == "There."
    with client.chat.completions.stream(messages=[QUESTION], **fields) as stream:
        turn = stream.get_final_completion().choices[0].message.model_dump()
    assert turn["tool_calls"][0]["function"]["parsed_arguments"] is None
    answer = client.chat.completions.create(messages=[QUESTION, turn, result], **fields)
    assert answer.choices[0].message.content == "There."


def test_input_is_counted_referred_to_and_truncated(scripted, client):
    scripted.answers(("", "There."))
    made = client.responses.create(model="scripted", input="where is it?", instructions="be brief")
    counted = client.responses.input_tokens.count(model="scripted", input="where is it?", instructions="be brief")
    assert counted.input_tokens == made.usage.input_tokens
    items = [{"type": "item_reference", "id": made.output[0].id}, QUESTION]
    assert client.responses.create(model="scripted", input=items).usage.input_tokens > counted.input_tokens
    long = [{"role": "user", "content": f"{number} " + "far away " * 4000} for number in range(40)]
    made = client.responses.create(model="scripted", input=[*long, QUESTION], truncation="auto", max_output_tokens=9)
    context = client.models.retrieve("scripted").max_model_len
    assert context - 10_000 < made.usage.input_tokens < context
