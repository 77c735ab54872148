"""LangChain's ChatOpenAI against a running engine."""

from typing import Literal

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "Return the last item of a list."


class Choice(BaseModel):
    """What to use."""

    kind: Literal["list", "tuple"]
    size: Literal[1, 2, 3]


@tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"7 degrees in {city}"


@pytest.fixture(scope="module")
def model(shared_engine) -> ChatOpenAI:
    base = shared_engine.wait_for_line(r"HTTP on (http://[^\s,]+)", 1).group(1)
    return ChatOpenAI(base_url=f"{base}/v1", api_key="none", model="quire-default", max_tokens=120, temperature=0)


def test_invoked_and_streamed_it_says_the_same(model):
    whole = model.invoke(QUESTION)
    chunks = list(model.stream(QUESTION, stream_usage=True))
    assert whole.content
    assert "".join(chunk.content for chunk in chunks) == whole.content
    counts = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert counts[-1]["output_tokens"] == whole.usage_metadata["output_tokens"] > 0


def test_bound_tools_are_called_and_their_results_go_back(model):
    bound = model.bind_tools([get_weather], tool_choice="get_weather", strict=True)
    answer = bound.invoke(QUESTION)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]["city"] in ("Oslo", "Rome")) == ("get_weather", True)
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.bind(max_tokens=2).invoke([HumanMessage(QUESTION), answer, result]).id
    pieces = list(bound.stream(QUESTION))
    whole = sum(pieces[1:], pieces[0])
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [(call["name"], call["args"])]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_instance_of_the_class(model, method):
    assert isinstance(model.with_structured_output(Choice, method=method).invoke(QUESTION), Choice)
