"""litellm's providers that speak to us: OpenAI's and vLLM's shapes through one door, Anthropic's through the other."""

import asyncio
import json
from types import ModuleType
from typing import Any, Literal

import pytest
from pydantic import BaseModel

QUESTION = {"role": "user", "content": "Return the last item of a list."}
PROVIDERS = ["openai", "hosted_vllm", "anthropic"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": PARAMETERS}}


class Choice(BaseModel):
    """What to use."""

    kind: Literal["list", "tuple"]
    size: Literal[1, 2, 3]


def through(provider: str, url: str, model: str) -> dict[str, Any]:
    base = url if provider == "anthropic" else f"{url}/v1"
    return {"model": f"{provider}/{model}", "api_base": base, "api_key": "none", "temperature": 0}


@pytest.fixture(scope="module")
def litellm() -> ModuleType:
    """Its import takes four seconds: of the process that runs these tests, not of each that collects them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
        import litellm
    return litellm


@pytest.fixture(params=PROVIDERS)
def fields(request, shared_engine) -> dict[str, Any]:
    """The embedded model through each provider."""
    return {**through(request.param, f"http://{shared_engine.http}", "quire-default"), "messages": [QUESTION]}


def test_whole_streamed_and_async_it_says_the_same(litellm, fields):
    fields["max_tokens"] = 12
    whole = litellm.completion(**fields)
    text = whole.choices[0].message.content
    assert text
    chunks = list(litellm.completion(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    async def streamed() -> str:
        chunks = await litellm.acompletion(**fields, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    assert asyncio.run(streamed()) == text


def test_a_forced_call_comes_whole_and_streamed(litellm, fields):
    fields |= {"max_tokens": 60, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = litellm.completion(**fields).choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    built = litellm.stream_chunk_builder(list(litellm.completion(**fields, stream=True)))
    (streamed,) = built.choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == ("weather", call.function.arguments)


def test_a_class_is_answered_by_any_model(litellm, fields):
    answer = litellm.completion(**fields, max_tokens=120, response_format=Choice)
    assert Choice.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_tool_is_called_and_its_result_goes_back(litellm, scripted, calls, provider):
    scripted.answers(("weather", calls("weather", city="Oslo")), ("7 degrees", "It is cold in Oslo."))
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    fields = {**through(provider, scripted.url, "scripted"), "tools": [TOOL], "max_tokens": 120}
    turn = litellm.completion(messages=messages, **fields).choices[0].message
    (call,) = turn.tool_calls
    messages += [turn, {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "7 degrees"}]
    assert litellm.completion(messages=messages, **fields).choices[0].message.content == "It is cold in Oslo."


def test_responses_and_plain_completions(litellm, shared_engine):
    url, prompt = f"http://{shared_engine.http}", "def add(a, b):"
    (item,) = litellm.responses(**through("openai", url, "quire-default"), input=prompt, max_output_tokens=8).output
    assert item.content[0].text
    completed = litellm.text_completion(**through("hosted_vllm", url, "quire-default"), prompt=prompt, max_tokens=8)
    assert completed.choices[0].text


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_texts_become_vectors_and_are_ranked(litellm, embedding_engine, provider):
    base = f"http://{embedding_engine.http}/v1"
    fields = {"model": f"{provider}/minilm", "api_base": base, "api_key": "none"}
    assert len(litellm.embedding(input=["one", "another"], **fields).data[1]["embedding"]) == 384
    if provider == "hosted_vllm":
        (best,) = litellm.rerank(query="a list", documents=["the weather", "items[-1]"], top_n=1, **fields).results
        assert best["index"] == 1
