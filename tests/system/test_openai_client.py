"""OpenAI's own Python client against a running engine: it must parse whatever we say."""

import asyncio
import json
import os
import signal
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from parts.clock import GUARD, eventually
from pydantic import BaseModel

USER = {"role": "user", "content": "Return the last item of a list."}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA}}
OTHER_TOOL = {"type": "function", "function": {"name": "get_time", "description": "Time."}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED = {"mode": "required", "tools": [NAMED]}
FLAT_TOOL = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}


class Choice(BaseModel):
    kind: Literal["list", "tuple"]
    size: Literal[1, 2, 3]


def base_of(engine) -> str:
    return engine.wait_for_line(r"HTTP on (http://[^\s,]+)").group(1) + "/v1"


@pytest.fixture(scope="module")
def base(shared_engine) -> str:
    return base_of(shared_engine)


@pytest.fixture(scope="module")
def client(base):
    with OpenAI(base_url=base, api_key="none", max_retries=0, timeout=GUARD) as client:
        yield client


@pytest.fixture(scope="module")
def model(client) -> str:
    return client.models.list().data[0].id


def test_completions_whole_and_streamed_say_the_same(client, model):
    fields = {"model": model, "prompt": "def add(a, b):", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**fields)
    streamed = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == whole.choices[0].text != ""
    assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_chat_whole_streamed_and_async_says_the_same(client, base, model):
    fields = {"model": model, "messages": [USER], "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason

    async def main() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as other:
            answer = await other.chat.completions.create(**fields)
            stream = await other.chat.completions.create(**fields, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return answer.choices[0].message.content, "".join(pieces)

    assert asyncio.run(main()) == (text, text)


def test_logprobs_and_several_outputs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=[USER], max_tokens=3, n=2, seed=1, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        for entry in choice.logprobs.content:
            assert bytes(entry.bytes).decode() == entry.token
            assert len(entry.top_logprobs) == 2
            assert entry.top_logprobs[0].logprob >= entry.logprob


def test_vllms_extra_fields_are_taken_from_extra_body(client, model):
    answer = client.chat.completions.create(
        model=model, messages=[USER], max_tokens=8, temperature=0, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert answer.choices[0].message.content in ("yes", "no")
    extra = {"min_tokens": 5, "ignore_eos": True, "return_token_ids": True, "top_k": 5, "repetition_penalty": 1.1}
    answer = client.chat.completions.create(model=model, messages=[USER], max_tokens=5, extra_body=extra)
    assert len(answer.choices[0].token_ids) == 5


def test_structured_answers_are_parsed_whole_and_streamed(client, model):
    fields = {"model": model, "messages": [USER], "max_tokens": 80, "response_format": Choice}
    assert isinstance(client.chat.completions.parse(**fields).choices[0].message.parsed, Choice)
    with client.chat.completions.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Choice)


@pytest.mark.parametrize("choice", ["required", NAMED, {"type": "allowed_tools", "allowed_tools": ALLOWED}])
def test_calls_are_forced_whole_and_streamed(client, model, choice):
    tools = [TOOL] if choice == "required" else [OTHER_TOOL, TOOL]
    fields = {"model": model, "messages": [USER], "max_tokens": 120, "tools": tools, "tool_choice": choice, "seed": 3}
    answer = client.chat.completions.create(**fields, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, answer.choices[0].finish_reason) == ("get_weather", "tool_calls")
    assert arguments["city"] in ("Oslo", "Rome")
    assert answer.choices[0].message.content is None
    with client.chat.completions.stream(**fields, parallel_tool_calls=False) as stream:
        final = stream.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls
    assert json.loads(streamed.function.arguments) == arguments
    history = [USER, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}]
    assert client.chat.completions.create(model=model, messages=history, tools=[TOOL], max_tokens=2).choices


def test_a_format_beside_a_forced_call_shapes_nothing(client, model):
    """instructor sends both; what a request may not mean twice is still refused."""
    forced = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60}
    fields = {"model": model, "messages": [USER], **forced}
    answer = client.chat.completions.create(**fields, response_format={"type": "json_object"})
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    with pytest.raises(openai.BadRequestError, match="set only one"):
        client.chat.completions.create(**fields, extra_body={"guided_choice": ["yes", "no"]})


def test_errors_are_the_clients_own(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[USER], temperature=3)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_parameter")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[USER])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="other", messages=[USER], web_search_options={})


def test_responses_are_made_parsed_streamed_and_continued(client, model):
    first = client.responses.create(model=model, input="def add(a, b):", max_output_tokens=8, temperature=0)
    assert first.output_text
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(
        model=model, input="and subtract", previous_response_id=first.id, max_output_tokens=4
    )
    assert second.usage.input_tokens > first.usage.total_tokens
    parsed = client.responses.parse(model=model, input="a list", text_format=Choice, max_output_tokens=80)
    assert isinstance(parsed.output_parsed, Choice)
    with client.responses.stream(model=model, input="a list", text_format=Choice, max_output_tokens=80) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds
    assert isinstance(final.output_parsed, Choice)
    listed = client.responses.input_items.list(second.id)
    assert listed.data[0].content[0].text == "and subtract"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_responses_call_functions(client, model):
    with client.responses.stream(
        model=model, input="weather?", tools=[FLAT_TOOL], tool_choice="required", max_output_tokens=120,
        parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        arguments = "".join(e.delta for e in stream if e.type == "response.function_call_arguments.delta")
        (call,) = stream.get_final_response().output
    assert (call.name, call.arguments) == ("get_weather", arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}
    items = [{"role": "user", "content": "weather?"}, call.to_dict(), result]
    assert client.responses.create(model=model, input=items, tools=[FLAT_TOOL], max_output_tokens=2).output


def test_every_frontend_knows_every_response_and_cancels_it(base, model, shared_engine):
    def fresh() -> OpenAI:
        """A connection of its own: the kernel gives it to one of the frontends."""
        return OpenAI(base_url=base, api_key="none", max_retries=0)

    with fresh() as maker:
        made = maker.responses.create(
            model=model, input="x", background=True, max_output_tokens=3500, extra_body={"ignore_eos": True}
        )
        assert made.status == "in_progress"
        for _ in range(8):
            with fresh() as other:
                assert other.responses.retrieve(made.id).status == "in_progress"
        with fresh() as other:
            assert other.responses.cancel(made.id).status == "cancelled"
        eventually(shared_engine.idle)
        for _ in range(8):
            with fresh() as other:
                assert other.responses.retrieve(made.id).status == "cancelled"


def test_a_background_stream_is_taken_up_again_at_every_frontend(base, model):
    with OpenAI(base_url=base, api_key="none", max_retries=0) as maker:
        made = maker.responses.create(
            model=model, input="x", background=True, stream=True, max_output_tokens=400, extra_body={"ignore_eos": True}
        )
        seen = [next(made) for _ in range(5)]
        made.close()
    id = seen[0].response.id
    for _ in range(4):
        with OpenAI(base_url=base, api_key="none", max_retries=0) as other:  # a connection of its own
            rest = list(other.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number))
            told = [*seen, *rest]
            assert [event.sequence_number for event in told] == list(range(len(told)))
            assert rest[-1].type == "response.incomplete"
            text = "".join(event.delta for event in told if event.type == "response.output_text.delta")
            assert text == rest[-1].response.output_text
            assert other.responses.retrieve(id) == rest[-1].response


def test_a_background_response_whose_frontend_was_killed_has_failed(serve, model):
    engine = serve("--frontends", "2")
    base = base_of(engine)
    with OpenAI(base_url=base, api_key="none") as maker:
        made = maker.responses.create(
            model=model, input="x", background=True, max_output_tokens=3500, extra_body={"ignore_eos": True}
        )
    before = len(engine.lines)
    for pid in engine.pids("frontend"):
        os.kill(pid, signal.SIGKILL)
    engine.wait_for_line("frontend 0 listens", before)
    engine.wait_for_line("frontend 1 listens", before)

    def status() -> str:
        with OpenAI(base_url=base, api_key="none", max_retries=5) as other:
            return other.responses.retrieve(made.id).status

    eventually(lambda: status() != "in_progress")
    assert status() == "failed"
