"""In an answer that is given whole, what looked like a call and has arguments that are no JSON is text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.parsing.tools.forced import NamedParser, RequiredParser
from quire.frontend.parsing.tools.json_objects.hermes import HermesParser
from quire.frontend.parsing.tools.json_objects.llama3_json import Llama3JsonParser
from quire.frontend.parsing.tools.json_objects.mistral import MistralParser
from quire.frontend.parsing.tools.parser import MAX_CALLS, StateParser
from quire.frontend.parsing.tools.pythonic_calls.pythonic import PythonicParser

GOOD = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
BAD = '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>'
CUT = '<tool_call>{"name": "f", "arguments": {"a": [1,'
CASES = [
    (HermesParser, BAD, BAD, []),
    (HermesParser, CUT, CUT, []),
    (HermesParser, f"x {GOOD}\n{BAD}\n{GOOD} y", f"x \n{BAD} y", ['{"a": 1}'] * 2),
    (HermesParser, f"{BAD}{CUT}", f"{BAD}{CUT}", []),
    (HermesParser, GOOD.replace("1", "NaN"), GOOD.replace("1", "NaN"), []),
    (HermesParser, GOOD.replace("1", "[" * 9999), GOOD.replace("1", "[" * 9999), []),
    (MistralParser, '[TOOL_CALLS]f{"a": oops}[TOOL_CALLS]f{"a": 1}', '[TOOL_CALLS]f{"a": oops}', ['{"a": 1}']),
    (
        MistralParser,
        '[TOOL_CALLS][{"name": "f", "arguments": {oops}}, {"name": "f", "arguments": {}}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {oops}}',
        ["{}"],
    ),
    (
        Llama3JsonParser,
        'so {"name": "f", "parameters": {"a": x}} it',
        'so {"name": "f", "parameters": {"a": x}} it',
        [],
    ),
    (PythonicParser, "[f(a=1, b=oops), f(a=2)]", "[f(a=1, b=oops)", ['{"a": 2}']),
    (NamedParser, '{"a": 1}', "", ['{"a": 1}']),
    (NamedParser, '{"a": 1', '{"a": 1', []),
    (RequiredParser, '[{"name": "f", "parameters": {"a', "", []),
    (RequiredParser, "[", "", []),
    (RequiredParser, '[{"name": "f", "parameters": {}}, {"na', "", ["{}"]),
]


def read(kind: type[StateParser], parts: list[str]) -> tuple[str, list[str]]:
    parser = kind(frozenset({"f"}))
    parser.checks_arguments = True
    pieces = [*map(parser.feed, parts), parser.finish()]
    calls: list[str] = []
    for delta in (delta for piece in pieces for delta in piece.calls):
        assert (delta.index, bool(delta.id), delta.name) == (len(calls), True, "f")
        calls.append(delta.arguments)
    return "".join(piece.text for piece in pieces), calls


@pytest.mark.parametrize(("kind", "written", "text", "calls"), CASES)
def test_what_is_no_json_is_text_wherever_the_pieces_are_cut(kind, written, text, calls):
    for size in (1, 2, 3, 7, 64, len(written)):
        assert read(kind, [written[at : at + size] for at in range(0, len(written), size)]) == (text, calls)


SHREDS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {',
        '"a": 1',
        "}",
        "}}",
        "[",
        "]",
        "oops",
        " ",
        "\n",
        '"',
        "[TOOL_CALLS]",
        "f{",
        "[f(a=",
        "1",
        ",",
        "'x'",
        ")",
        "f(",
        GOOD,
        BAD,
    ]
)


@pytest.mark.parametrize("kind", [HermesParser, Llama3JsonParser, MistralParser, PythonicParser])
@examples(100)
@given(shreds=st.lists(SHREDS, max_size=12))
def test_any_split_of_any_text_gives_the_same(kind, shreds):
    written = "".join(shreds)
    text, calls = read(kind, [written])
    assert read(kind, shreds) == read(kind, list(written)) == (text, calls)
    if not calls:
        assert text == written


def test_calls_that_are_none_count_to_the_most_of_a_message_and_lose_no_character():
    written = BAD * (MAX_CALLS + 5) + GOOD
    assert read(HermesParser, [written]) == (written, [])
