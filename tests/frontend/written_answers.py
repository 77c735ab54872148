"""Answers as models write them in every format, cut anywhere, and the parts that the pipeline's events tell."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "parsing/tools"))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parent / "parsing/tools/tagged"))

from test_formats import CALLS
from writing import PROPERTIES, WAYS

from quire.frontend.parsing.formats import AnswerFormat, AnswerFormats
from quire.frontend.parsing.tools.table import choose
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.proto.api import Chat, ChatMessage, Delta, Event, Finished, Started, Tool
from quire.proto.messages.message import Usage

Parts = list[list[str]]
"""[kind, text]: thought, text, or call with its name and its arguments."""

F, G = '{"name": "f", "%s": {"a": "é}"}}', '{"name": "get_weather", "%s": {}}'
UNMARKED = [
    ("hermes", f"<tool_call>{F % 'arguments'}</tool_call>\n<tool_call>{G % 'arguments'}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>'),
    ("mistral", '[TOOL_CALLS]f{"a": "é}"}[TOOL_CALLS]get_weather[ARGS]{}'),
    ("mistral", f"[TOOL_CALLS][{F % 'arguments'}, {G % 'arguments'}]"),
    ("llama3_json", f"{F % 'parameters'}; {G % 'parameters'}"),
    ("pythonic", "[f(a='é}', b=2), get_weather(city=oops), f()]"),
]
TAGGED = [(name, way.calls(("get_weather", {"city": "é}", "days": "2"}), ("f", {}))) for name, way in WAYS.items()]
SAID: dict[str, list[str]] = {}
for name, written, *_ in (*CALLS, *UNMARKED, *TAGGED):
    SAID.setdefault(choose(name, "").name, []).append(written)
SAID["deepseek_v4"] = [one.replace("｜function_calls", "｜tool_calls") for one in SAID["deepseek_v32"]]
FORMATS = sorted(SAID)
TOOLS = [Tool("f"), Tool("get_weather", "", json.dumps({"type": "object", "properties": PROPERTIES})), Tool("now")]
THOUGHTS = {"mistral": "[THINK]hm[/THINK]", "cohere_command3": "<|START_THINKING|>hm\n<|END_THINKING|>", "qwen3": ""}
"""Reasoning behind text, where a format has it there."""
FORCED = [F % "parameters", G % "parameters", '{"a": "é}"}']
HARMONY = [
    "<|channel|>analysis<|message|>hm<|end|>",
    "<|start|>assistant<|channel|>commentary<|message|>so<|end|>",
    '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
]


def answer_format(tools: str, reasoning: str, show: bool = True, **chat: object) -> AnswerFormat:
    formats = AnswerFormats.choose(tools, "auto" if tools == "openai" else reasoning, "")
    made = formats.for_chat(Chat([ChatMessage("user", "hi")], tools=TOOLS, **chat), "", show)
    assert made is not None
    return made


@st.composite
def answers(draw: st.DrawFn) -> tuple[AnswerFormat, list[str]]:
    """A format, and an answer in it in pieces."""
    tools, reasoning = draw(st.sampled_from([*FORMATS, "openai"])), draw(st.sampled_from(list(THOUGHTS)))
    choice = draw(st.sampled_from(["auto", "auto", "auto", "required", "function:f"]))
    shreds = HARMONY + SAID[tools] if tools == "openai" else [THOUGHTS[reasoning], *SAID[tools]]
    if choice != "auto" and tools != "openai":
        shreds = [THOUGHTS[reasoning], "[", *FORCED, ", ", "]"]
    shreds = [*shreds, *[shred for one in shreds for shred in (one[: len(one) // 2], one[len(one) // 2 :])]]
    said = draw(st.lists(st.sampled_from([*shreds, *shreds, "\n", " text ", "<", "["]), max_size=7))
    written = "".join(said)
    edges = [0, *sorted(draw(st.sets(st.integers(0, len(written)), max_size=9))), len(written)]
    return answer_format(tools, reasoning, tool_choice=choice), [written[a:b] for a, b in pairwise(edges)]


def events(parts: Iterable[str], answer_format: AnswerFormat, whole: bool, stop: str | None = None) -> list[Event]:
    """The events of an answer whose text comes in these parts, one token each."""
    batches: list[Sequence[Event]] = [[Started("r", "m", 1)]]
    batches += [[Delta(0, part, (index,))] for index, part in enumerate(parts)]
    batches.append([Finished(0, "stop", Usage(1, 0, len(batches) - 1, 0.0, 0.0, 0.0), stop)])
    source = iter(batches)

    async def take() -> Sequence[Event]:
        return next(source, ())

    stream = ParsedStream(SimpleNamespace(prepared=SimpleNamespace(n=1), take=take), answer_format, whole)
    return [event for batch in iter(lambda: now(stream.take()), ()) for event in batch]


def now(coroutine) -> Sequence[Event]:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def told(events: Iterable[Event]) -> Parts:
    """The parts that the events tell. Fails where a call goes on behind another part."""
    found: Parts = []
    num_calls = 0
    for kind, text, call in _grown(events):
        if call is None:
            grow(found, kind, text)
        elif call.name:
            assert call.id
            assert call.index == num_calls
            num_calls += 1
            found.append([f"call {call.name}", text])
        else:
            assert (call.id, call.index, found[-1][0][:5]) == ("", num_calls - 1, "call ")
            found[-1][1] += text
    return found


def _grown(events: Iterable[Event]) -> Iterator[tuple[str, str, object]]:
    for event in events:
        if isinstance(event, Delta):
            if event.reasoning:
                yield "thought", event.reasoning, None
            if event.text:
                yield "text", event.text, None
            for call in event.tool_calls:
                yield "call", call.arguments, call


def grow(parts: Parts, kind: str, text: str) -> None:
    """Add reasoning or text to the last part, or as another one."""
    if parts and parts[-1][0] == kind:
        parts[-1][1] += text
    else:
        parts.append([kind, text])
