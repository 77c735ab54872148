"""Anthropic's own Python client against a running engine."""

import asyncio

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from parts.clock import GUARD

USER = {"role": "user", "content": "Return the last item of a list."}
GREEDY = {"temperature": 0}
TOOL = {
    "name": "get_weather",
    "description": "Weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def base(shared_engine) -> str:
    return shared_engine.wait_for_line(r"HTTP on (http://[^\s,]+)").group(1)


@pytest.fixture(scope="module")
def client(base):
    with Anthropic(base_url=base, api_key="none", max_retries=0, timeout=GUARD) as client:
        yield client


@pytest.fixture(scope="module")
def model(client) -> str:
    return client.models.list().data[0].id


def test_a_message_whole_streamed_and_async_says_the_same(client, base, model):
    fields = {"model": model, "max_tokens": 12, "messages": [USER], "extra_body": GREEDY}
    whole = client.messages.create(**fields)
    (block,) = whole.content
    assert (whole.role, block.type, bool(block.text)) == ("assistant", "text", True)
    assert whole.stop_reason in ("max_tokens", "end_turn")
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == block.text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)

    async def main() -> tuple[str, str]:
        async with AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as other:
            answer = await other.messages.create(**fields)
            async with other.messages.stream(**fields) as stream:
                return answer.content[0].text, (await stream.get_final_message()).content[0].text

    assert asyncio.run(main()) == (text, text)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools_are_used_whole_and_streamed_and_their_results_go_back(client, model, choice):
    choice = {**choice, "disable_parallel_tool_use": True}
    fields = {"model": model, "max_tokens": 120, "messages": [USER], "tools": [TOOL], "tool_choice": choice}
    fields["extra_body"] = {"seed": 3}
    whole = client.messages.create(**fields)
    (use,) = whole.content
    assert (whole.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "get_weather")
    assert use.input["city"] in ("Oslo", "Rome")
    with client.messages.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_message().content
    assert {"content_block_start", "input_json", "message_delta"} <= kinds
    assert streamed.input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7 degrees"}
    history = [USER, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model=model, max_tokens=2, messages=history, tools=[TOOL]).content


def test_stop_sequences_prefill_and_structured_output(client, model):
    begun = [USER, {"role": "assistant", "content": "def last(items):\n    return"}]
    fields = {"model": model, "max_tokens": 40, "messages": begun, "extra_body": GREEDY}
    whole = client.messages.create(**fields)
    stop = whole.content[0].text[2:5]
    cut = client.messages.create(**fields, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert whole.content[0].text.startswith("".join(block.text for block in cut.content))
    format = {"type": "json_schema", "schema": TOOL["input_schema"]}
    shaped = client.messages.create(model=model, max_tokens=80, messages=[USER], output_config={"format": format})
    assert shaped.content[0].text.startswith("{")


def test_counted_tokens_are_those_of_the_message(client, model):
    fields = {
        "model": model,
        "messages": [USER],
        "system": "Be brief.",
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
    }
    counted = client.messages.count_tokens(**fields)
    usage = client.messages.create(max_tokens=1, **fields).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_what_only_other_servers_do_is_named_in_the_answers_header(client, model):
    fields = {"model": model, "max_tokens": 32_000, "messages": [USER], "stop_sequences": ["e"], "metadata": {}}
    searching = [{"type": "web_search_20250305", "name": "web_search"}]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = client.messages.with_raw_response.create(**fields, thinking=thinking, tools=searching)
    thought, searched, bound = answer.headers["x-quire-ignored"].split(", ")
    assert (thought, searched) == ("thinking", "tools[]=web_search_20250305")
    usage = answer.parse().usage
    assert bound == f"max_tokens={4096 - usage.input_tokens - usage.cache_read_input_tokens}"


def test_models_are_listed_and_found(client, model):
    (listed,) = client.models.list(limit=1)
    assert (listed.type, listed.id, listed.display_name, listed.max_input_tokens) == ("model", model, model, 4096)
    assert client.models.retrieve(model) == listed
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_errors_are_the_clients_own(client, model):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=model, max_tokens=0, messages=[USER])
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: [0-9]+ tokens > 4096 maximum"):
        client.messages.create(model=model, max_tokens=1, messages=[{"role": "user", "content": "? ! " * 4000}])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=1, messages=[USER])
