"""Work on what a client, or a model, wrote grows with its size, not with the square of it.

Each row is run at N and 4 N; those of all parsers of a model's output stand in `parsing/test_growth.py`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from quire.frontend.chat.checks import arguments_value, check_chat
from quire.frontend.http.answer import json_list
from quire.frontend.http.anthropic.messages_types import MessageRequest
from quire.frontend.http.decoding.decode import decode
from quire.frontend.http.decoding.ignored import noting
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.completion_types import CompletionRequest
from quire.frontend.http.openai.responses.tools import ToolBox
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.frontend.limits.json_scan import scan
from quire.frontend.parsing.reasoning.think import ThinkParser
from quire.frontend.parsing.reasoning.wrapped_answer import WrappedAnswerParser
from quire.frontend.parsing.tools.json_objects.hermes import HermesParser
from quire.frontend.parsing.tools.json_objects.llama3_json import Llama3JsonParser
from quire.frontend.parsing.tools.json_objects.mistral import MistralParser
from quire.frontend.parsing.tools.pythonic_calls.literal import LiteralError, to_json
from quire.frontend.parsing.tools.pythonic_calls.pythonic import PythonicParser
from quire.frontend.parsing.tools.table import choose
from quire.frontend.text.stop_strings import StopMatcher
from quire.proto import grpc_map
from quire.proto.api import Chat, ChatMessage, Tool
from quire.proto.generated import quire_pb2 as pb

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from growth import Work, check_linear, seconds, small_heap, written  # noqa: F401  # the fixture


def names(num: int, extra: str = "") -> bytes:
    members = ",".join(f'"{index:x}":0' for index in range(num))
    return ('{"prompt":"x","metadata":{' + members + extra + "}}").encode()


def read(raw: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    scan(raw, "body")
    return msgspec.json.decode(raw, type=kind)


def repeated_name(num: int) -> Work:
    raw = names(num, ',"0":1')
    return lambda: scan(raw, "body")


def other_names(num: int) -> Work:
    raw = names(num)
    return lambda: read(raw, CompletionRequest)


def depth(num: int) -> Work:
    return lambda raw=b'{"a":' * num + b"}" * num: scan(raw, "body")


def escapes(num: int) -> Work:
    return lambda raw=b'{"prompt":"' + b'\\"\\\\' * num + b'"}': scan(raw, "body")


def open_string(num: int) -> Work:
    return lambda raw=b'{"prompt":"' + b"\\\\" * num: scan(raw, "body")


def spaces(num: int) -> Work:
    return lambda raw=b'["a"' + b" " * num + b', "a"' + b" " * num + b"]": scan(raw, "body")


def parts(num: int) -> Work:
    content = ",".join(['{"type":"text","text":"hello world"}'] * num)
    raw = f'{{"messages":[{{"role":"user","content":[{content}]}}]}}'.encode()
    return lambda: read(raw, ChatRequest).chat()


def reasoning_items(num: int) -> Work:
    item = '{"type":"reasoning","summary":[{"type":"summary_text","text":"' + "a" * 200 + '"}]}'
    raw = ('{"input":[' + ",".join([item] * num) + "]}").encode()
    return lambda: read(raw, ResponseRequest).request("id", [], ToolBox())


def misleading_name(num: int) -> Work:
    """An unknown field whose name looks like the end of the parser's own sentence."""
    raw = b'{"' + b" - at `" * num + b'\\n":1}'
    return lambda: decode(raw, CompletionRequest)


def unknown_fields(num: int) -> Work:
    """Fields that are dropped, of the body and of every message."""
    turns = ",".join(f'{{"role":"user","content":"hi","mood{index}":1}}' for index in range(num))
    fields = "".join(f',"unheard_of_{index}":{{"a":"b"}}' for index in range(num))
    raw = f'{{"messages":[{turns}]{fields}}}'.encode()

    def work() -> None:
        with noting(refuses_unknown=False) as ignored:
            decode(raw, ChatRequest)
            ignored.header()

    return work


def blocks(num: int) -> Work:
    block = '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"hello"}]}'
    raw = (
        '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[' + ",".join([block] * num) + "]}]}"
    ).encode()
    return lambda: (asked := read(raw, MessageRequest)).request(asked.chat(), "id")


def stop_lists(num: int) -> Work:
    raw = json.dumps({"prompt": "x", "stop": ["ab"] * num, "logit_bias": {str(i): 1 for i in range(num)}}).encode()
    return lambda: read(raw, CompletionRequest).generate_request("x")


def checked_chat(num: int) -> Work:
    chat = Chat([ChatMessage("user", "a" * 10) for _ in range(num)])
    return lambda: check_chat(chat)


def arguments(num: int) -> Work:
    return lambda text="[" * num + "]" * num: arguments_value(text)


def wire(num: int) -> Work:
    raw = pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")] * num), stop=["a"] * num
    ).SerializeToString()

    def work() -> None:
        grpc_map.check_contents(raw, pb.GenerateRequest)
        grpc_map.generate_request(pb.GenerateRequest.FromString(raw))

    return work


def packed_ids(num: int) -> Work:
    raw = pb.DetokenizeRequest(token_ids=range(num)).SerializeToString()
    return lambda: grpc_map.check_contents(raw, pb.DetokenizeRequest)


def stops(num: int) -> Work:
    """The strings that match longest and then fail."""

    def work() -> None:
        matcher = StopMatcher(["a" * 255 + "b"] * 16, include=False)
        for _ in range(num):
            matcher.feed("a")
        matcher.flush()

    return work


def literal(num: int) -> Work:
    def work() -> None:
        for text in ("[" + "1, " * num + "]", "'" + "\\" * num, '"' + "\\a" * num + '"', "-" * num, " " * num):
            try:
                to_json(text)
            except LiteralError:
                continue

    return work


def listed(num: int) -> Work:
    return lambda: json_list(range(num))


def wrapped() -> WrappedAnswerParser:
    return WrappedAnswerParser("<think>", "</think>", False, answer=("<answer>", "</answer>"), thinks=True)


NAMES = frozenset(("f",))
TYPES = {"object": {"type": "object"}, "maybe": {"type": ["string", "null"]}}
TOOLS = [Tool("f", "", json.dumps({"properties": TYPES}))]
PARSERS = {
    "hermes": lambda: HermesParser(NAMES),
    "llama3": lambda: Llama3JsonParser(NAMES),
    "mistral": lambda: MistralParser(NAMES),
    "pythonic": lambda: PythonicParser(NAMES),
    "think": lambda: ThinkParser("<think>", "</think>", starts_in_reasoning=False),
}
TAGGED = {name: lambda name=name: choose(name, "").parser.of(TOOLS) for name in ("qwen3_coder", "glm45")}
IN_TAGS = {
    "qwen3_coder": ("<tool_call><function=f>", "<parameter={}>{}</parameter>"),
    "glm45": ("<tool_call>f", "<arg_key>{}</arg_key><arg_value>{}</arg_value>"),
}
ARGUMENTS: dict[str, Callable[[int], list[tuple[str, str]]]] = {
    "many": lambda num: [(str(number), "1") for number in range(num)],
    "a string": lambda num: [("text", "</paramete</arg_value" * num)],
    "an object": lambda num: [("object", "{'a': " + "[1, " * num)],
    "a null": lambda num: [("maybe", " " * num)],
}
SAID: dict[str, tuple[str, Callable[[int], str]]] = {
    "a long call": ("hermes", lambda num: '<tool_call>{"name": "f", "arguments": {"a": "' + "\\u0041" * num + '"}}'),
    "an open call": ("llama3", lambda num: '{"name": "f", "parameters": ' + '{"a": ' * num),
    "a bad key": ("llama3", lambda num: '{"' + "a" * num),
    "a bad list": ("mistral", lambda num: '[TOOL_CALLS][{"name": "' + "a" * num),
    "an id": ("mistral", lambda num: "[TOOL_CALLS]f[CALL_ID]" + "a" * num),
    "an argument": ("pythonic", lambda num: '[f(a="' + "x" * num + '")]'),
    "arguments": ("pythonic", lambda num: "[f(" + "a=1, " * num + ")]"),
    "braces": ("pythonic", lambda num: "[f(a=" + "{" * num),
    "a thought": ("think", lambda num: "<think>" + "</thin" * num),
}
"""By what a model writes, the parser of it."""


def tagged(parser: str, given: str) -> Callable[[int], Work]:
    begin, argument = IN_TAGS[parser]
    return written(
        TAGGED[parser], lambda num: begin + "".join(argument.format(*pair) for pair in ARGUMENTS[given](num))
    )


ROWS: dict[str, tuple[Callable[[int], Work], int]] = {
    "a repeated name": (repeated_name, 10_000),
    "other names": (other_names, 10_000),
    "depth": (depth, 8_000),
    "escapes": (escapes, 200_000),
    "an open string": (open_string, 200_000),
    "spaces": (spaces, 500_000),
    "a misleading name": (misleading_name, 3_000),
    "unknown fields": (unknown_fields, 500),
    "content parts": (parts, 1_000),
    "reasoning items": (reasoning_items, 1_500),
    "blocks": (blocks, 500),
    "stop lists": (stop_lists, 5_000),
    "messages": (checked_chat, 1_000),
    "arguments": (arguments, 100_000),
    "a protobuf chat": (wire, 3_000),
    "packed ids": (packed_ids, 200_000),
    "stop strings": (stops, 3_000),
    "literals": (literal, 20_000),
    "a written list": (listed, 50_000),
    "a wrapped answer": (written(wrapped, lambda num: "<answer>" + "</answe\n" * num), 1_000),
    **{f"{parser}: {said}": (written(PARSERS[parser], text), 1_000) for said, (parser, text) in SAID.items()},
    **{f"{parser}, {given}": (tagged(parser, given), 200) for parser in TAGGED for given in ARGUMENTS},
}


def ratios() -> Iterator[tuple[str, float, float]]:
    """For a person: `python -c "from test_growth import table; table()"`."""
    for name, (make, num) in ROWS.items():
        once = seconds(make, num)
        yield name, seconds(make, 2 * num) / once, seconds(make, 4 * num) / once


def table() -> None:
    for name, two, four in ratios():
        print(f"| {name} | {two:.1f} | {four:.1f} |")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ROWS)
def test_four_times_as_much_takes_four_times_as_long(name):
    make, num = ROWS[name]
    check_linear(make, num)
