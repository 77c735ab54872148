"""Logprobs of a response: its end tells again what its deltas told, and holds nothing that a collector must visit."""

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from asked import ask, events, run

from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.tools import ToolBox
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.proto import api
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

INFO: Any = SimpleNamespace(model_names=("m",), default_temperature=1.0, default_top_p=1.0)
TOP = tuple(api.Candidate(token, f"{token}", -float(token), b"") for token in range(20))


@pytest.fixture
def growing():
    made = GrowingResponse(msgspec.convert({"input": "hi"}, ResponseRequest), ToolBox(), "resp_1", INFO, False)
    list(made.events(api.Started("r", "m", 1)))
    return made


def delta(*tokens: str) -> api.Delta:
    return api.Delta(0, "".join(tokens), (), [api.TokenLogprobs(1, one, -1.0, 1, TOP, (), b"") for one in tokens])


ENTRY, OUTPUT = delta("x").logprobs, "response.output_text.delta"
LOOK = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


def told(growing: GrowingResponse, event: api.Event) -> list[Any]:
    return msgspec.json.decode(msgspec.json.encode(list(growing.events(event))))


def test_the_end_tells_the_logprobs_of_all_deltas(growing):
    events = [one for piece in (delta("a"), delta(), delta("b", "c")) for one in told(growing, piece)]
    deltas = [entry for one in events if one["type"].endswith("text.delta") for entry in one["logprobs"]]
    assert [entry["token"] for entry in deltas] == ["a", "b", "c"]
    done, part, item = told(growing, api.Finished(0, "stop", Usage(1, 0, 3, 0.0, 0.0, 0.0)))
    assert done["logprobs"] == part["part"]["logprobs"] == item["item"]["content"][0]["logprobs"] == deltas
    answer = msgspec.json.decode(msgspec.json.encode(growing.answer))
    assert answer["output"] == [item["item"]]


@pytest.mark.parametrize(
    "between",
    [
        api.Delta(0, "", (), ENTRY, "hm"),
        api.Delta(0, "", (), ENTRY, tool_calls=[api.ToolCallDelta(0, "c1", "f", "{}")]),
    ],
)
def test_logprobs_of_tokens_whose_text_lags_come_with_it_and_others_tokens_are_no_texts(growing, between):
    lagging, later = api.Delta(0, "", (), delta("\ufffd").logprobs), delta("\xe9")
    events = [
        one for piece in (delta("a"), lagging, later, lagging, between, delta("b")) for one in told(growing, piece)
    ]
    told(growing, api.Finished(0, "stop", Usage(1, 0, 6, 0.0, 0.0, 0.0)))
    deltas = [[entry["token"] for entry in one["logprobs"]] for one in events if one["type"] == OUTPUT]
    assert [one for one in deltas if one] == [["a"], ["\ufffd", "\xe9"], ["b"]]


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        (f"<think>hm</think>let me look{LOOK}é so", ["let me look", "é so"]),
        (f"a < b{LOOK} so <tool_c", ["a < b", " so <tool_c"]),
        (f"<think>a < b</think>\n\n<{LOOK}\n\nso", ["<", "\n\nso"]),
        ("<tool_call>\n{look}</tool_call>", ["<tool_call>\n{look}</tool_call>"]),
    ],
)
def test_logprobs_stand_beside_the_text_of_their_tokens_however_many_come_at_once(web, tokenizer, said, texts):
    """Also of tokens that waited, because they might have begun a call."""
    tokens = tokenizer.encode(said).ids
    entries = tuple(PositionLogprobs(token, -1.0, 1) for token in tokens)
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    fields = {"tools": [tool], "include": ["message.output_text.logprobs"], "max_output_tokens": 300}

    async def main():
        async with web(tool_call_parser="hermes", reasoning_parser="qwen3") as w:

            def script(submit, num):
                for at in range(0, len(tokens), num):
                    some = [(0, at + offset, token) for offset, token in enumerate(tokens[at : at + num])]
                    ends = [w.scheduler.finish(submit.number, len(tokens))] if at + num >= len(tokens) else []
                    logprobs = [OutputLogprobs(submit.number, 0, False, at, entries[at : at + num])]
                    w.scheduler.outputs(submit.number, some, ends, logprobs)

            async def parts(num, stream):
                w.scheduler.script = lambda submit: script(submit, num)
                answer = await ask(w, stream=stream, **fields)
                made = events(answer.text)[-1]["response"] if stream else answer.json()
                parts = [part for item in made["output"] if item["type"] == "message" for part in item["content"]]
                shown = [bytes(byte for one in part["logprobs"] for byte in one["bytes"]).decode() for part in parts]
                return [part["text"] for part in parts], shown

            found = [await parts(num, stream) for num in (1, 7, len(tokens)) for stream in (False, True)]
            assert found == [found[0]] * len(found)
            assert found[0] == (texts,) * 2

    run(main)


def test_logprobs_that_are_kept_are_no_objects(growing):
    """A collection visits every one, which takes the event loop tens of milliseconds where a long answer keeps them."""
    piece = delta("a")
    list(growing.events(piece))
    before = len(gc.get_objects())
    for _ in range(500):
        list(growing.events(piece))
    assert len(gc.get_objects()) - before < 100
