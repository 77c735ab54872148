"""The same random request, valid or not, gets the same verdict and the same tokens over both doors."""

import math

import pytest
from doors import GrpcDoor, HttpDoor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.proto.api import Chat, ChatMessage, GenerateRequest, Tool
from quire.proto.params import Structured

WIDTH = 4096
"""About the embedded model's vocabulary: ids on both sides of it are drawn."""

odd_floats = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1.0, -0.0, 0.0, 1e-300])
odd_ints = st.sampled_from([-(2**63), -(10**9), -2, -1, 0, 1, 64, 65, 129, 10**9, 2**63 - 1])
ids = st.integers(0, 500) | st.integers(-2, WIDTH + 4) | odd_ints


def floats(low: float, high: float) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(low, high) | odd_floats


def ints(low: int, high: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(low, high) | odd_ints


texts = st.text(max_size=24)
messages = st.builds(
    ChatMessage,
    role=st.sampled_from(["user", "assistant", "system", "tool", "", "x" * 65]),
    content=texts,
    name=st.just(""),
)
tools = st.lists(
    st.builds(
        Tool,
        name=st.sampled_from(["f", "get_weather", "a b", "", "x" * 65]),
        description=st.just("d"),
        parameters=st.sampled_from(
            ["", '{"type": "object"}', '{"type": "object", "properties": {"a": {"enum": [1]}}}']
        ),
    ),
    max_size=2,
)
chats = st.builds(
    Chat,
    messages=st.lists(messages, max_size=3),
    add_generation_prompt=st.sampled_from([None, True, False]),
    continue_final_message=st.sampled_from([None, None, True]),
    tools=tools,
    tool_choice=st.sampled_from([None, None, "auto", "none", "required", "function:f", "function:none"]),
    parallel_tool_calls=st.sampled_from([None, False]),
    template_kwargs=st.sampled_from(["", '{"enable_thinking": false}', '{"messages": 1}', '{"a": [1]}']),
)
structured = st.builds(
    Structured,
    kind=st.sampled_from(["json_schema", "regex", "grammar"]),
    text=st.sampled_from(
        ['{"enum": ["a", "b"]}', "[ab]{1,3}", 'root ::= "a" | "b"', "(", '{"type": 1}', '{"$ref": "http://x/y"}']
    ),
).filter(lambda one: one.kind != "json_schema" or one.text.startswith("{"))
requests = st.builds(
    GenerateRequest,
    input=texts | st.lists(ids, max_size=6).map(tuple) | chats,
    model=st.sampled_from([None, None, None, "nobody", "../../x"]),
    adapter=st.sampled_from([None, None, None, "nobody"]),
    truncate_prompt_tokens=ints(1, 8),
    priority=st.sampled_from([None, None, 0, 1]),
    cache_salt=st.sampled_from([None, "a", "s" * 129]),
    temperature=floats(0, 2),
    top_p=floats(0, 1),
    top_k=ints(-1, 50),
    min_p=floats(0, 1),
    repetition_penalty=floats(0, 2),
    presence_penalty=floats(-2, 2),
    frequency_penalty=floats(-2, 2),
    seed=st.integers(-(2**63), 2**63 - 1),
    n=st.sampled_from([None, 1, 2, 3, 0, 65]),
    best_of=st.sampled_from([None, None, 2, 3]),
    max_tokens=st.integers(1, 6) | st.sampled_from([0, -1, 10**9]),
    min_tokens=ints(0, 4),
    stop=st.lists(st.text(max_size=3), max_size=3).map(tuple) | st.just(("a",) * 17),
    stop_token_ids=st.lists(ids, max_size=3).map(tuple),
    ignore_eos=st.sampled_from([None, True, False]),
    logit_bias=st.dictionaries(ids, st.floats(-101, 101), max_size=3),
    allowed_token_ids=st.lists(ids, max_size=3).map(tuple),
    bad_words=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    logprobs=ints(0, 4),
    include_stop_str_in_output=st.sampled_from([None, True]),
    skip_special_tokens=st.sampled_from([None, False]),
    structured=st.none() | st.none() | structured,
)


@pytest.fixture(scope="module")
def doors(serve):
    engine = serve()
    return GrpcDoor(engine.client), HttpDoor(engine.http)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(request=requests)
def test_a_random_request_gets_the_same_verdict_over_both_doors(doors, request) -> None:
    grpc, http = doors
    expected, answered = grpc.ask(request), http.ask(request)
    assert (answered.reason, answered.status) == (expected.reason, expected.status), request
    assert answered == expected, request
