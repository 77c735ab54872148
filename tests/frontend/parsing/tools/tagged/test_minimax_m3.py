"""MiniMax M3's arguments, elements within elements, become JSON of the types that the tool's schema gives them."""

import json

import pytest

from quire.frontend.parsing.tools.tagged.minimax_m3 import MARK, MinimaxM3Parser
from quire.proto.api import Tool

SCHEMA = {
    "properties": {
        "trip": {"$ref": "#/$defs/trip"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "text": {"type": "string"},
    },
    "$defs": {
        "trip": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "stops": {"type": "array", "items": {"$ref": "#/$defs/trip"}},
            },
            "additionalProperties": {"type": "number"},
        }
    },
}
TOOLS = [Tool("f", "", json.dumps(SCHEMA))]


def element(name: str, *parts: str) -> str:
    return f"{MARK}<{name}>{''.join(parts)}{MARK}</{name}>"


def call(*parts: str) -> str:
    return f'{MARK}<tool_call>\n{MARK}<invoke name="f">{"".join(parts)}{MARK}</invoke>\n{MARK}</tool_call>'


def read(parts: list[str], whole: bool = False) -> tuple[str, list[str]]:
    parser = MinimaxM3Parser.of(TOOLS)
    parser.checks_arguments = whole
    pieces = [*map(parser.feed, parts), parser.finish()]
    calls: dict[int, str] = {}
    for delta in (delta for piece in pieces for delta in piece.calls):
        calls[delta.index] = calls.get(delta.index, "") + delta.arguments
    return "".join(piece.text for piece in pieces), list(calls.values())


STOP = element("city", "Rome") + element("days", "2") + element("cost", "2.50")
CASES = [
    (element("trip", STOP), {"trip": {"city": "Rome", "days": 2, "cost": 2.5}}),
    (
        element("trip", element("city", "12"), element("days", "null"), element("stops", element("item", STOP) * 2)),
        {"trip": {"city": "12", "days": None, "stops": [{"city": "Rome", "days": 2, "cost": 2.5}] * 2}},
    ),
    (element("list", element("item", "1"), "\n", element("item", "two")), {"list": [1, "two"]}),
    (element("list", "[1, 2]"), {"list": [1, 2]}),
    (element("list", ""), {"list": ""}),
    (element("trip", element("stops", "")), {"trip": {"stops": []}}),
    (element("trip", element("city", "a") + element("city", "b")), {"trip": {"city": "a"}}),
    (element("trip", element("trip", "1")), {"trip": {"trip": 1}}),
    (element("text", "<b> & ", element("i", "x"), MARK), {"text": f"<b> & {MARK}<i>x{MARK}</i>{MARK}"}),
    (f"{MARK}<trip>{MARK}<city>Rome", {"trip": {"city": "Rome"}}),
]


@pytest.mark.parametrize(("written", "arguments"), CASES)
def test_nested_values_have_their_types_wherever_they_are_cut(written, arguments):
    text = "ok " + call(written)
    for whole in (False, True):
        found, (told,) = read([text], whole)
        assert (found, json.loads(told)) == ("ok ", arguments)
        assert read(list(text), whole) == (found, [told])
        for at in range(len(text)):
            assert read([text[:at], text[at:]], whole) == (found, [told])


def test_a_nested_value_that_was_cut_off_is_told_as_it_was_written():
    text = call(element("text", "a"), element("trip", STOP))
    end = text.index("2.50")
    assert (
        read([text[:end]])
        == read(list(text[:end]))
        == ("", ['{"text": "a", "trip": ' + text[text.index(MARK + "<city>") : end]])
    )
    assert read([text[:end]], whole=True) == (text[:end], [])


def test_elements_that_nest_too_deep_are_flat_from_there_on():
    text = call(element("trip", f"{MARK}<stops>{MARK}<item>" * 5000))
    _, (told,) = read([text])
    assert json.loads(told)["trip"]["stops"][0]
