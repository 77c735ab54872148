"""Every door tells reasoning, text and calls in the order of the model's text, wherever the tokens are cut."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import msgspec
import openai
from hypothesis import given
from parts.examples import examples

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from written_answers import Parts, answers, events, grow, now, told

from quire.frontend.http.anthropic.messages_answer import AnswerShape, MessageEvents
from quire.frontend.http.ollama.generation import Answer, as_message
from quire.frontend.http.openai.chat_answer import ChatAnswer
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.tools import ToolBox
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.frontend.request.collect import collect
from quire.proto import grpc_map
from quire.proto.api import Event, Generation, OutputPart, Thought
from quire.proto.generated import quire_pb2 as pb

Json = dict[str, Any]
Found = list[Event]
INFO: Any = SimpleNamespace(model_names=("m",), default_temperature=1.0, default_top_p=1.0)
USER = {"role": "user", "content": "hi"}


def generation(found: Found) -> Generation:
    source = iter([found])

    async def take() -> Found:
        return next(source, [])

    return now(collect(SimpleNamespace(prepared=SimpleNamespace(n=1, num_best=0), take=take)))


def as_parts(written: Iterable[OutputPart]) -> Parts:
    return [
        ["thought", part.text]
        if isinstance(part, Thought)
        else ["text", part]
        if isinstance(part, str)
        else [f"call {part.name}", part.arguments]
        for part in written
    ]


def messages_stream(found: Found) -> Parts:
    shape, parts, is_open = MessageEvents(AnswerShape()), list[list[str]](), False
    items = b"".join(item for event in found for item in shape.events(event)).decode()
    for data in (json.loads(line[6:]) for line in items.splitlines() if line.startswith("data: ")):
        if data["type"] == "content_block_start":
            block = data["content_block"]
            assert not is_open
            assert data["index"] == len(parts)
            assert block["type"] != "tool_use" or (block["id"] and block["name"])
            is_open = True
            kind = f"call {block['name']}" if block["type"] == "tool_use" else block["type"]
            parts.append([kind.replace("thinking", "thought"), ""])
        elif data["type"] == "content_block_delta":
            assert is_open
            _, text = data["delta"].values()
            parts[data["index"]][1] += text
        elif data["type"] == "content_block_stop":
            is_open = False
    return parts


def messages_whole(found: Found) -> Parts:
    blocks = msgspec.json.decode(msgspec.json.encode(AnswerShape().whole(generation(found))))["content"]
    return [
        [f"call {block['name']}", json.dumps(block["input"])]
        if block["type"] == "tool_use"
        else [block["type"].replace("thinking", "thought"), block.get("thinking") or block.get("text")]
        for block in blocks
    ]


def responses(found: Found) -> Parts:
    """Of a stream. Fails where the response that it ends with says something else."""
    growing = GrowingResponse(msgspec.convert({"input": "hi"}, ResponseRequest), ToolBox(), "resp_1", INFO, False)
    parts: Parts = []
    for one in (one for event in found for one in growing.events(event)):
        if one["type"] == "response.output_item.added":
            item = one["item"]
            assert one["output_index"] == len(parts)
            assert item["type"] != "function_call" or (item["call_id"] and item["name"])
            parts.append([{"reasoning": "thought", "message": "text"}.get(item["type"]) or f"call {item['name']}", ""])
        elif one["type"].endswith(".delta"):
            parts[one["output_index"]][1] += one["delta"]
    items = growing.answer["output"]
    assert [text for _, text in parts] == [
        item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"] for item in items
    ]
    return parts


def ollama_stream(found: Found) -> Parts:
    answer, parts = Answer("m", as_message), list[list[str]]()
    for event in found:
        for one in msgspec.json.decode(msgspec.json.encode(list(answer.objects(event)))):
            take_message(parts, one["message"], "thinking", lambda arguments: json.dumps(arguments))
    return parts


def take_message(parts: Parts, message: Json, thinking: str, shown: Callable[[Any], str]) -> None:
    """Add what one message, or the delta of one, has: reasoning, text, calls."""
    for kind, text in (("thought", message.get(thinking)), ("text", message.get("content"))):
        if text:
            grow(parts, kind, text)
    for call in message.get("tool_calls") or ():
        if "name" in call["function"]:
            parts.append([f"call {call['function']['name']}", ""])
        parts[-1][1] += shown(call["function"]["arguments"])


def chat_stream(found: Found) -> Parts:
    request = msgspec.convert({"messages": [USER], "stream": True}, ChatRequest)
    answer, parts = ChatAnswer(request, "r", "", lambda _: None, False), list[list[str]]()
    for chunk in (chunk for event in found for chunk in answer.chunks(event)):
        take_message(parts, chunk["choices"][0]["delta"], "reasoning_content", str)
    return parts


def chat_whole(found: Found) -> Parts:
    answer = ChatAnswer(msgspec.convert({"messages": [USER]}, ChatRequest), "r", "", lambda _: None, False)
    parts: Parts = []
    take_message(parts, answer.whole(generation(found), 0)["choices"][0]["message"], "reasoning_content", str)
    return parts


def ollama_whole(found: Found) -> Parts:
    whole = msgspec.json.decode(msgspec.json.encode(Answer("m", as_message).whole(generation(found))))
    parts: Parts = []
    take_message(parts, whole["message"], "thinking", lambda arguments: json.dumps(arguments))
    return parts


def grpc_stream(found: Found) -> Parts:
    messages = [grpc_map.event_message(number, event).SerializeToString() for number, event in enumerate(found)]
    return told(grpc_map.event(pb.StreamEvent.FromString(one)) for one in messages)


def grpc_whole(found: Found) -> Parts:
    message = grpc_map.generation_message(generation(found)).SerializeToString()
    return as_parts(grpc_map.generation(pb.GenerateResponse.FromString(message)).outputs[0].in_order)


IN_ORDER = {
    False: [messages_stream, responses, ollama_stream, chat_stream, grpc_stream],
    True: [messages_whole, responses, grpc_whole],
}
"""Doors that can tell the order, by whether the answer is given whole."""
APART = [chat_whole, ollama_whole]
"""Doors whose one message has reasoning, text and calls apart."""


def meaning(parts: Parts, texts: bool = False) -> list[list[Any]]:
    """The parts with arguments as values. `texts`: where those of a call are no object, they are text."""
    found: list[list[Any]] = []
    for kind, text in parts:
        try:
            value = msgspec.json.decode(text or "{}", type=dict) if kind.startswith("call ") else text
        except msgspec.DecodeError:
            value = text
            kind = "text" if texts else kind
        if isinstance(value, dict) or kind.startswith("call "):
            found.append([kind, value])
        else:
            grow(found, kind, value)
    return found


def apart(parts: list[list[Any]]) -> list[list[Any]]:
    """Reasoning, text and calls, each by themselves."""
    found: list[list[Any]] = []
    for wanted in ("thought", "text"):
        for kind, text in parts:
            if kind == wanted:
                grow(found, kind, text)
    return found + [part for part in parts if part[0].startswith("call ")]


@examples(90)
@given(answers())
def test_every_door_tells_any_cut_as_it_tells_the_finest_in_the_order_of_the_model(answer):
    kind, pieces = answer
    written = "".join(pieces)
    for whole in (False, True):
        parts = told(events(list(written), kind, whole))
        for found in (events([written], kind, whole), events(pieces, kind, whole)):
            for door in IN_ORDER[whole]:
                in_text = door is ollama_stream
                assert meaning(door(found), in_text) == meaning(parts, in_text), door
            for door in APART if whole else ():
                assert meaning(door(found)) == apart(meaning(parts)), door


CALL = '<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
SAID = f"[THINK]hm[/THINK]let me look{CALL}[THINK]and[/THINK] so {CALL} it is"
LOOK: Json = {"name": "look", "parameters": {"type": "object", "properties": {}}}
CALLED = ["call look", '{"a": 1}']
MEANT = [
    ["thought", "hm"],
    ["text", "let me look"],
    CALLED,
    ["thought", "and"],
    ["text", " so "],
    CALLED,
    ["text", " it is"],
]


def test_official_clients_read_the_same_whole_streamed_and_all_at_once(web, tokenizer):
    """Tokens that come at once are one delta, as under load."""
    tokens = tokenizer.encode(SAID).ids

    async def main():
        async with web(tool_call_parser="hermes", reasoning_parser="mistral") as w:
            base = f"http://127.0.0.1:{w.port}"
            messages = anthropic.AsyncAnthropic(base_url=base, api_key="none").messages
            opened = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none")

            def at_once(submit) -> None:
                events = [(0, position, token) for position, token in enumerate(tokens)]
                w.scheduler.outputs(submit.number, events, [w.scheduler.finish(submit.number, len(tokens))])

            fields: Json = {"model": "tiny", "max_tokens": 300, "messages": [USER]}
            tool = {"name": "look", "input_schema": LOOK["parameters"]}
            thinks = fields | {"tools": [tool], "thinking": {"type": "enabled", "budget_tokens": 1024}}
            asked: Json = {"model": "tiny", "input": "hi", "tools": [{"type": "function", **LOOK}]}
            for script in (at_once, lambda submit: w.scheduler.answer(submit.number, tokens, "stop")):
                w.scheduler.script = script
                async with messages.stream(**thinks) as stream:
                    streamed = await stream.get_final_message()
                for message in (streamed, await messages.create(**thinks)):
                    assert [list(block_of(block)) for block in message.content] == MEANT
                async with opened.responses.stream(**asked) as stream:
                    response = await stream.get_final_response()
                for made in (response, await opened.responses.create(**asked)):
                    assert [list(item_of(item)) for item in made.output] == MEANT
                chat = await opened.chat.completions.create(**fields, tools=[{"type": "function", "function": LOOK}])
                message = chat.choices[0].message
                assert (message.reasoning_content, message.content) == ("hmand", "let me look so  it is")
                assert [call.function.arguments for call in message.tool_calls] == ['{"a": 1}'] * 2

    asyncio.run(main())


def block_of(block: Any) -> tuple[str, str]:
    if block.type == "tool_use":
        return f"call {block.name}", json.dumps(block.input)
    return ("thought", block.thinking) if block.type == "thinking" else ("text", block.text)


def item_of(item: Any) -> tuple[str, str]:
    if item.type == "function_call":
        return f"call {item.name}", item.arguments
    return "thought" if item.type == "reasoning" else "text", item.content[0].text
