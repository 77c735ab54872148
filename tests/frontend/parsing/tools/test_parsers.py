"""Tool calls in what models write: recognised in every format, streamed, and never at the cost of a character."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.tools.forced import NamedParser, RequiredParser
from quire.frontend.parsing.tools.json_objects.hermes import HermesParser
from quire.frontend.parsing.tools.json_objects.llama3_json import Llama3JsonParser
from quire.frontend.parsing.tools.json_objects.mistral import MistralParser
from quire.frontend.parsing.tools.parser import MAX_CALLS
from quire.frontend.parsing.tools.pythonic_calls.pythonic import PythonicParser
from quire.frontend.parsing.tools.table import choose

NAMES = frozenset({"f", "get_weather"})
PARSERS = [HermesParser, Llama3JsonParser, MistralParser, PythonicParser, RequiredParser]
SHREDS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        '{"name": "f", ',
        '"arguments": {"a": 1}}',
        '"parameters": {}}',
        '{"name": "f", "arguments": {"a": "}\\""}}',
        "f",
        "f{",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "[f(a=1, b='x')",
        "g()",
        "a=[1, {'k': None}]",
        '"',
        "\\",
        "'",
        ",",
        ";",
        " ",
        "\n",
        ":",
        "é",
        '"name"',
        '"arguments"',
        "1",
        "hello",
        "[f(",
        "=",
    ]
)
HOSTILE = st.lists(SHREDS, max_size=14).map("".join)


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def read(parser, parts: list[str]) -> tuple[str, list[tuple[str, str]]]:
    text: list[str] = []
    calls: list[list[str]] = []
    for piece in [*(parser.feed(part) for part in parts), parser.finish()]:
        text.append(piece.text)
        for delta in piece.calls:
            if delta.index == len(calls):
                assert delta.id
                assert delta.name
                calls.append([delta.name, ""])
            else:
                assert (delta.id, delta.name) == ("", "")
            calls[delta.index][1] += delta.arguments
    return "".join(text), [(name, arguments) for name, arguments in calls]


CASES = [
    (
        HermesParser,
        'ok\n<tool_call>\n{"name": "f", "arguments": {"a": "}\\""}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"b": 1}, "id": 3, "name": "g"}</tool_call>\n',
        "ok\n",
        [("f", '{"a": "}\\""}'), ("g", '{"b": 1}')],
    ),
    (HermesParser, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    (HermesParser, '<tool_call>{"name": "f"}</tool_call> done', " done", [("f", "{}")]),
    (HermesParser, "<tool_call>{oops}</tool_call> x", "<tool_call>{oops}</tool_call> x", []),
    (HermesParser, '<tool_call>{"name": "f", "arguments": 3}', '<tool_call>{"name": "f", "arguments": 3}', []),
    (HermesParser, '<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    (HermesParser, '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    (HermesParser, '<tool_call>\n{"arguments" : null , "name": "f"}\n</tool_call>', "", [("f", "{}")]),
    (HermesParser, '<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", "{}")]),
    (HermesParser, '<tool_call>{"name": "f", "arguments": nul', '<tool_call>{"name": "f", "arguments": nul', []),
    (HermesParser, '<tool_call>{"name": "f", "arguments": no}', '<tool_call>{"name": "f", "arguments": no}', []),
    (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": [1,', "", [("f", '{"a": [1,')]),
    (HermesParser, "a <tool_c", "a <tool_c", []),
    (HermesParser, '  \n<tool_call>{"name": "f"}</tool_call> \n<tool_call>{"name": "f"}', "", [("f", "{}")] * 2),
    (HermesParser, "no call", "no call", []),
    (
        Llama3JsonParser,
        '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}',
        "",
        [("f", '{"a": 1}'), ("f", "{}")],
    ),
    (Llama3JsonParser, '<|python_tag|>{"name": "unheard_of", "parameters": {}}', "", [("unheard_of", "{}")]),
    (Llama3JsonParser, '{"name": "Alice", "parameters": {}}', '{"name": "Alice", "parameters": {}}', []),
    (Llama3JsonParser, '{"name": "f", "parameters": null}; {"name": "f"}', "", [("f", "{}")] * 2),
    (Llama3JsonParser, '{"type": "function", "function": {"name": "f", "parameters": null}}', "", [("f", "{}")]),
    (Llama3JsonParser, '{"answer": {"name": "f"}}', '{"answer": {"name": "f"}}', []),
    (Llama3JsonParser, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (
        Llama3JsonParser,
        'So: {"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}} done',
        "So:  done",
        [("f", '{"a": 1}'), ("f", "{}")],
    ),
    (Llama3JsonParser, 'Use { so: {"name": "f", "parameters": {}}', "Use { so: ", [("f", "{}")]),
    (Llama3JsonParser, '{"a": "{", "b": [{"name": "f"}]} x', '{"a": "{", "b": [{"name": "f"}]} x', []),
    (
        Llama3JsonParser,
        '{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}',
        "",
        [("f", '{"a": 1}')],
    ),
    (HermesParser, '<tool_call>{"function": {"name": "f"}, "id": 1}</tool_call>', "", [("f", "{}")]),
    (HermesParser, '<tool_call>{"function": {"x": "f"}}', '<tool_call>{"function": {"x": "f"}}', []),
    (
        MistralParser,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        MistralParser,
        'Yes.[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g[ARGS]{"b": 2}[TOOL_CALLS]h[CALL_ID]abc[ARGS]{}',
        "Yes.",
        [("f", '{"a": 1}'), ("g", '{"b": 2}'), ("h", "{}")],
    ),
    (MistralParser, "[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
    (MistralParser, 'x[TOOL_CALLS] here you [are]: [{"name": "f", "arguments": {}}]', "x", [("f", "{}")]),
    (MistralParser, "[TOOL_CALLS] no [TOOL_CALLS]f{}", "[TOOL_CALLS] no ", [("f", "{}")]),
    (
        MistralParser,
        "[TOOL_CALLS] " + "x" * 300 + '[{"name": "f", "arguments": {}}]',
        "[TOOL_CALLS] " + "x" * 300 + '[{"name": "f", "arguments": {}}]',
        [],
    ),
    (
        PythonicParser,
        "[get_weather(city='Zürich\\n', days=[1, (2.5, None)], o={'k': True}), f()]",
        "",
        [("get_weather", '{"city": "Zürich\\n", "days": [1, [2.5, null]], "o": {"k": true}}'), ("f", "{}")],
    ),
    (PythonicParser, "[1] says so", "[1] says so", []),
    (
        PythonicParser,
        "[f(a=oops(1, ')'), b=2), unheard_of(x=[1]), get_weather(city='Oslo'), f()]",
        "[f(a=oops(1, ')'), b=2), unheard_of(x=[1])",
        [("get_weather", '{"city": "Oslo"}'), ("f", "{}")],
    ),
    (PythonicParser, "[f(), f(oops)] x", ", f(oops)] x", [("f", "{}")]),
    (PythonicParser, "[get_weather(city=Paris)]", "[get_weather(city=Paris)]", []),
    (PythonicParser, "[unheard_of(a=1)]", "[unheard_of(a=1)]", []),
    (PythonicParser, "[f(a=__import__('os'))]", "[f(a=__import__('os'))]", []),
    (PythonicParser, "[f(a=" + "[" * 99 + "]" * 99 + ")]", "[f(a=" + "[" * 99 + "]" * 99 + ")]", []),
    (
        RequiredParser,
        '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
]


@pytest.mark.parametrize(("kind", "written", "text", "calls"), CASES)
def test_calls_are_found_and_the_rest_stays_text_however_it_arrives(kind, written, text, calls):
    for size in (1, 2, 3, 7, len(written)):
        parts = [written[at : at + size] for at in range(0, len(written), size)]
        assert read(kind(NAMES), parts) == (text, calls)


@pytest.mark.parametrize("kind", PARSERS)
@examples(150)
@given(written=HOSTILE, cuts=st.lists(st.integers(0, 500), max_size=12))
def test_any_split_of_any_text_gives_the_same_text_and_calls(kind, written, cuts):
    whole = read(kind(NAMES), [written])
    assert read(kind(NAMES), pieces(written, cuts)) == whole
    assert read(kind(NAMES), list(written)) == whole
    if not whole[1] and kind is not RequiredParser:  # whose brackets are the grammar's, not the model's
        assert whole[0] == written


def test_a_name_is_told_before_its_arguments_are_complete():
    parser = HermesParser(NAMES)
    assert parser.feed('<tool_call>{"name": "f", "arguments"').calls == ()
    (begun,) = parser.feed(': {"a').calls
    assert (begun.index, begun.name, begun.arguments) == (0, "f", '{"a')
    (more,) = parser.feed('": 1').calls
    assert (more.id, more.name, more.arguments) == ("", "", '": 1')


def test_a_named_call_is_the_whole_answer():
    assert read(NamedParser(frozenset({"f"})), ['{"a"', ": 1}"]) == ("", [("f", '{"a": 1}')])
    assert read(NamedParser(frozenset({"f"})), []) == ("", [])


def test_ids_are_of_the_shape_clients_and_templates_expect():
    (call,) = HermesParser(NAMES).feed('<tool_call>{"name": "f", "arguments": {').calls
    assert re.fullmatch(r"call_[0-9a-f]{24}", call.id)
    (call,) = MistralParser(NAMES).feed("[TOOL_CALLS]f{").calls
    assert re.fullmatch(r"[A-Za-z0-9]{9}", call.id)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("...<tool_call>...", "hermes"),
        ("...<tool_call><function=f>...", None),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("plain", None),
    ],
)
def test_the_format_is_read_from_the_chat_template(template, name):
    row = choose("auto", Shown(source=template))
    assert (row.name if row else None) == name


def test_a_parser_may_be_named_or_switched_off_and_a_wrong_name_is_told():
    assert choose("mistral", "").parser is MistralParser
    assert choose("llama4_json", "").name == "llama3_json"
    assert choose("", "<tool_call>") is None
    with pytest.raises(ValueError, match=r"tool_call_parser: 'nope' is not one of auto, .*hermes"):
        choose("nope", "")


@examples(100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_python_values_arrive_as_the_same_json(value):
    text, ((_, arguments),) = read(PythonicParser(NAMES), [f"[f(a={value!r})]"])
    assert text == ""
    assert json.loads(arguments) == {"a": value}


MANY = [
    (HermesParser, "", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', '<tool_call>{"name": "f", "argum'),
    (Llama3JsonParser, "", '{"name": "f", "parameters": {}};', ';{"name": "f", "parameters": {}};{"name'),
    (MistralParser, "", "[TOOL_CALLS]f{}", "[TOOL_CALLS]f{}[TOOL_CALLS"),
    (MistralParser, "[TOOL_CALLS][", '{"name": "f", "arguments": {}},', ',{"name": "f", "arguments": {}}'),
    (PythonicParser, "[", "f(a=1),", ",f(a=1),f(a"),
    (RequiredParser, "[", '{"name": "f", "parameters": {}},', ',{"name": "f", "parameters": {}},{"'),
]


@pytest.mark.parametrize(("kind", "before", "call", "more"), MANY)
def test_an_output_has_no_more_calls_than_a_message_may_and_loses_no_character(kind, before, call, more):
    calls = (before + call * MAX_CALLS).removesuffix(more[0]) + more
    for size in (len(calls), 3):
        text, found = read(kind(NAMES), [calls[at : at + size] for at in range(0, len(calls), size)])
        assert (len(found), text) == (MAX_CALLS, more)
