"""The same random request, valid or not, gets the same verdict and the same tokens over both doors."""

import json
import math
from typing import Any

import pytest
from doors import GrpcDoor, HttpDoor, json_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.proto import grpc_map
from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError, Tool, ToolCall
from quire.proto.messages.params import Structured

WIDTH = 4096
"""About the embedded model's vocabulary: ids on both sides of it are drawn."""
ROLES = {"user", "assistant", "system", "tool"}

odd_floats = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0, -0.0, 0.0, 1e-300])
odd_ints = st.sampled_from([-(2**63), -(10**9), -2, -1, 0, 1, 64, 65, 129, 10**9, 2**63 - 1])
ids = st.integers(0, 500) | st.integers(-2, WIDTH + 4) | odd_ints

texts = st.text(max_size=24)
roles = st.sampled_from(["user", "assistant", "system"])
schemas = ["", '{"type": "object"}', '{"type": "object", "properties": {"a": {"enum": [1]}}}']
chats = st.builds(
    Chat,
    messages=st.lists(st.builds(ChatMessage, role=roles, content=texts), min_size=1, max_size=3),
    add_generation_prompt=st.sampled_from([None, True, False]),
    tools=st.lists(st.builds(Tool, st.sampled_from(["f", "get_weather"]), st.just("d"), st.sampled_from(schemas))),
    tool_choice=st.sampled_from([None, None, "auto", "none", "required", "function:f"]),
    parallel_tool_calls=st.sampled_from([None, False]),
    template_kwargs=st.sampled_from(["", '{"enable_thinking": false}']),
)
odd_chats = st.builds(
    Chat,
    messages=st.lists(
        st.builds(
            ChatMessage,
            role=roles | st.sampled_from(["tool", "", "x" * 65]),
            content=texts,
            reasoning=st.sampled_from(["", "", "hm"]),
            tool_calls=st.sampled_from([(), (), (ToolCall("1", "f", "{}"),)]),
            tool_call_id=st.sampled_from(["", "1"]),
        ),
        max_size=3,
    ),
    continue_final_message=st.sampled_from([None, True]),
    tools=st.lists(
        st.builds(Tool, st.sampled_from(["f", "f", "a b", "", "x" * 129]), parameters=st.just("")), max_size=2
    ),
    tool_choice=st.sampled_from([None, "auto", "required", "function:f", "function:none", "sometimes"]),
    template_kwargs=st.sampled_from(["", '{"messages": 1}', '{"a": [1]}', '{"a": 1}']),
)
structured = st.builds(
    Structured,
    kind=st.sampled_from(["json_schema", "regex", "grammar"]),
    text=st.sampled_from(
        ['{"enum": ["a", "b"]}', "[ab]{1,3}", 'root ::= "a" | "b"', "(", '{"type": 1}', '{"$ref": "http://x/y"}']
    ),
).filter(lambda one: one.kind != "json_schema" or one.text.startswith("{"))
maybe = st.sampled_from([None, True, False])
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "input": st.text(min_size=1, max_size=24)
    | st.lists(st.integers(0, 500), min_size=1, max_size=6).map(tuple)
    | chats,
    "temperature": st.floats(0.1, 2),
    "top_p": st.floats(0.1, 1),
    "top_k": st.integers(-1, 50),
    "min_p": st.floats(0, 0.5),
    "repetition_penalty": st.floats(0.5, 2),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "n": st.integers(1, 3),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple),
    "stop_token_ids": st.lists(st.integers(0, 500), max_size=3).map(tuple),
    "ignore_eos": maybe,
    "logit_bias": st.dictionaries(st.integers(0, 500), st.floats(-100, 100), max_size=3),
    "allowed_token_ids": st.lists(st.integers(0, 500), max_size=3).map(tuple),
    "bad_words": st.lists(st.text("abc", min_size=1, max_size=3), max_size=2).map(tuple),
    "logprobs": st.integers(0, 4),
    "include_stop_str_in_output": maybe,
    "skip_special_tokens": maybe,
    "truncate_prompt_tokens": st.integers(1, 8),
    "truncation_side": st.sampled_from(["left", "right"]),
}
ODD: dict[str, st.SearchStrategy[Any]] = {
    "input": texts | st.lists(ids, max_size=6).map(tuple) | odd_chats,
    "model": st.sampled_from(["nobody", "../../x", ""]),
    "adapter": st.just("nobody"),
    "truncate_prompt_tokens": odd_ints,
    "truncation_side": st.sampled_from(["", "LEFT"]),
    "suffix": st.sampled_from(["", "x"]),
    "priority": st.sampled_from([0, 1]),
    "cache_salt": st.sampled_from(["a", "s" * 129]),
    "timeout_seconds": odd_floats,
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"), odd_floats
    ),
    **dict.fromkeys(("top_k", "seed", "max_tokens", "min_tokens", "logprobs"), odd_ints),
    "n": st.sampled_from([0, 65, 10**9]),
    "best_of": st.sampled_from([0, 1, 2, 3, 65]),
    "stop": st.sampled_from([("",), ("a",) * 17, ("a" * 257,)]),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), st.lists(ids, max_size=3).map(tuple)),
    "logit_bias": st.dictionaries(ids, st.floats(-101, 101), max_size=3),
    "bad_words": st.lists(st.text(max_size=3), max_size=2).map(tuple),
    "structured": structured,
}


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    """Sound in most fields, so that most of what is odd in one of them is found there."""
    fields: dict[str, Any] = {"seed": draw(st.integers(-(2**63), 2**63 - 1)), "max_tokens": draw(st.integers(1, 6))}
    named = draw(st.lists(st.sampled_from(sorted(SOUND)), max_size=4, unique=True))
    fields |= {name: draw(SOUND[name]) for name in {"input", *named}}
    named = draw(st.lists(st.sampled_from(sorted(ODD)), max_size=2, unique=True))
    return GenerateRequest(**fields | {name: draw(ODD[name]) for name in named})


def can_be_said(request: GenerateRequest) -> bool:
    """Whether both wires can carry it: JSON has no NaN, protobuf no wider integers, OpenAI's chat five roles."""
    try:
        grpc_map.generate_request_message(request)
        json.dumps(json_request(request), allow_nan=False)
    except (RequestError, ValueError):
        return False
    return not isinstance(request.input, Chat) or all(one.role in ROLES for one in request.input.messages)


@pytest.fixture(scope="module")
def doors(shared_engine):
    return GrpcDoor(shared_engine.client), HttpDoor(shared_engine.http)


def held_alike(doors, request):
    grpc, http = doors
    expected, answered = grpc.ask(request), http.ask(request)
    if can_be_said(request):
        assert answered == expected, request
    else:  # refused where it is read, perhaps before something else that is wrong with it
        assert 400 <= expected.status < 500, request
        assert 400 <= answered.status < 500, request


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(request=requests())
def test_a_random_request_gets_the_same_verdict_over_both_doors(doors, request) -> None:
    held_alike(doors, request)


@pytest.mark.thorough
@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(request=requests())
def test_many_random_requests_get_the_same_verdicts_over_both_doors(doors, request) -> None:
    held_alike(doors, request)
