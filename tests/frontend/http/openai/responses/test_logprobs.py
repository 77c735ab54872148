"""Logprobs of a response: its end tells again what its deltas told, and holds nothing that a collector must visit."""

import gc
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.tools import ToolBox
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.proto import api
from quire.proto.messages.message import Usage

INFO: Any = SimpleNamespace(model_names=("m",), default_temperature=1.0, default_top_p=1.0)
TOP = tuple(api.Candidate(token, f"{token}", -float(token), b"") for token in range(20))


@pytest.fixture
def growing():
    made = GrowingResponse(msgspec.convert({"input": "hi"}, ResponseRequest), ToolBox(), "resp_1", INFO)
    list(made.events(api.Started("r", "m", 1)))
    return made


def delta(*tokens: str) -> api.Delta:
    return api.Delta(0, "".join(tokens), (), [api.TokenLogprobs(1, one, -1.0, 1, TOP, (), b"") for one in tokens])


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


def test_logprobs_that_are_kept_are_no_objects(growing):
    """A collection visits every one, which takes the event loop tens of milliseconds where a long answer keeps them."""
    piece = delta("a")
    list(growing.events(piece))
    before = len(gc.get_objects())
    for _ in range(500):
        list(growing.events(piece))
    assert len(gc.get_objects()) - before < 100
