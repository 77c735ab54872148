"""Calls that models write in tags are found in every format, with values of the tools' types, and lose no character."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.parsing.formats import AnswerFormats
from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.tools.parser import MAX_CALLS
from quire.frontend.parsing.tools.table import choose
from quire.proto.api import Chat, ChatMessage

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from writing import TOOLS, WAYS, parser, read, whole

every_format = pytest.mark.parametrize("name", WAYS)
CODE = 'if a < b and c > d:\n\tprint("x\\n", \'é\')  # </p> <function> {"k": [1]}'


FORCED = {"required": '[{"name": "now", "parameters": {"a": 1}}]', "function:now": '{"a": 1}'}


def arguments(name: str, values: dict[str, str], tool: str = "get_weather") -> dict:
    text, ((called, found),) = whole(name, WAYS[name].calls((tool, values)))
    assert (text, called) == ("", tool)
    return json.loads(found)


@every_format
def test_values_arrive_as_the_tools_schema_has_them(name):
    values = {
        "city": "Zürich",
        "days": "3",
        "cost": "2.50",
        "now": "True",
        "place": '{"at": [47.4, {"x": null}], "n": "</b>"}',
        "tags": '["a", "b"]',
        "note": "null",
        "either": "7",
        "mode": "fast",
        "node": "[1]",
    }
    assert arguments(name, values) == {
        "city": "Zürich",
        "days": 3,
        "cost": 2.5,
        "now": True,
        "place": {"at": [47.4, {"x": None}], "n": "</b>"},
        "tags": ["a", "b"],
        "note": None,
        "either": 7,
        "mode": "fast",
        "node": [1],
    }


ODD = [
    ("city", CODE),
    ("city", "null"),
    ("city", "12"),
    ("city", ""),
    ("city", "  two  spaces  "),
    ("city", "\n\nlines\n\n"),
    ("days", "three"),
    ("days", "1.5"),
    ("days", ""),
    ("cost", "NaN"),
    ("now", "1"),
    ("place", "[1]"),
    ("place", "{'broken': "),
    ("place", '{"a": 1} and more'),
    ("tags", "[" * 9999),
    ("note", "nullable"),
    ("note", " n"),
    ("either", "7 of 9"),
    ("mode", "true"),
    ("unheard_of", "5"),
]


@every_format
def test_what_is_of_none_of_its_types_stays_the_string_that_it_was(name):
    for key, value in ODD:
        written = WAYS[name].calls(("get_weather", {key: value}))
        ((_, found),) = (whole(name, written) if len(value) < 100 else read(parser(name), [written]))[1]
        assert json.loads(found) == {key: value}, (key, value)


@every_format
def test_python_values_become_json(name):
    assert arguments(name, {"place": "{'a': (1, None)}", "tags": "['x']", "mode": "None"}) == {
        "place": {"a": [1, None]},
        "tags": ["x"],
        "mode": None,
    }


@every_format
def test_calls_stand_between_texts_and_need_no_arguments(name):
    calls = WAYS[name].calls(("now", {}), ("get_weather", {"city": "Rome"}), ("unheard_of", {"a": "1"}))
    found = [("now", "{}"), ("get_weather", '{"city": "Rome"}'), ("unheard_of", '{"a": "1"}')]
    assert whole(name, f"I look.\n{calls}\n") == ("I look.\n", found)
    assert whole(name, f"One {calls}\n{calls} two <b>") == ("One  two <b>", found * 2)


@every_format
def test_arguments_stream_as_they_come(name):
    reader, written = parser(name), WAYS[name].calls(("get_weather", {"city": "abcdef"}))
    middle = written.index("def")
    (begun,) = reader.feed(written[:middle]).calls
    assert (begun.index, begun.name, begun.arguments) == (0, "get_weather", '{"city": "abc')
    (more,) = reader.feed("x").calls
    assert (more.id, more.name, more.arguments) == ("", "", "x")


@every_format
def test_a_call_cut_off_leaves_its_arguments_cut_off(name):
    way = WAYS[name]
    written = way.calls(("get_weather", {"city": "Rome", "place": '{"a": 1}'}))
    beginning = written[: written.index("Rome") + 2]
    assert whole(name, beginning) == ("", [("get_weather", '{"city": "Ro')])
    beginning = written[: written.index('": 1}')]
    assert whole(name, beginning) == ("", [("get_weather", '{"city": "Rome", "place": {"a')])
    beginning = written[: written.index("get_weather") + 4]
    assert whole(name, beginning) == (beginning, [])


@every_format
def test_in_a_whole_answer_a_call_cut_off_is_text(name):
    way = WAYS[name]
    once = way.calls(("get_weather", {"city": "Rome"}))
    cut_off = way.calls(("get_weather", {"city": "Paris"}))
    for end in range(cut_off.index("get_weather"), cut_off.index("Paris") + 5):
        found = read(parser(name, whole_answer=True), [f"ok {once}\n{cut_off[:end]}"])
        assert found == (f"ok \n{cut_off[:end]}", [("get_weather", '{"city": "Rome"}')])
    assert read(parser(name, whole_answer=True), [once + " so"]) == (" so", [("get_weather", '{"city": "Rome"}')])


@every_format
def test_a_function_has_any_name_that_a_request_may_give_it(name):
    for called in ("mcp.tools.get", "ns:tools/get-2", "wetter_für_東京", "7"):
        assert whole(name, WAYS[name].calls((called, {"a": "1"}))) == ("", [(called, '{"a": "1"}')])


@every_format
def test_forced_calls_are_read_as_with_every_other_format(name):
    for choice, written in FORCED.items():
        chat = Chat([ChatMessage("user", "x")], tools=TOOLS, tool_choice=choice)
        answer_format = AnswerFormats.choose(name, "", "").for_chat(chat, "", show_reasoning=True)
        found = read(answer_format.tool_parser(whole=False), list(written))
        assert found == ("", [("now", '{"a": 1}')]), choice


@every_format
def test_a_name_written_twice_is_one_argument(name):
    way = WAYS[name]
    twice = way.argument.format(key="city", value="Rome") + way.argument.format(key="city", value="Paris")
    written = way.begin + way.call.format(name="now") + twice + way.end_of_call + way.end
    assert whole(name, written) == ("", [("now", '{"city": "Rome"}')])


@every_format
def test_text_in_the_place_of_a_value_ends_the_call_and_is_text(name):
    way = WAYS[name]
    begun = way.begin + way.call.format(name="now") + way.argument.format(key="city", value="Rome")
    assert whole(name, f"{begun} oops") == (" oops" if begun[-1] != "\n" else "\n oops", [("now", '{"city": "Rome"}')])


@pytest.mark.parametrize(
    ("name", "written", "calls"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=now>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>",
            [("now", '{"a": "1", "b": "2"}')],
        ),
        ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</tool_call>", [("now", '{"a": "1"}')]),
        (
            "qwen3_coder",
            "<tool_call>\n<function=now>\n</tool_call>\n<tool_call>\n<function=free>\n</function>\n</tool_call>",
            [("now", "{}"), ("free", "{}")],
        ),
        (
            "qwen3_coder",
            "<tool_call><function=now><function=free></function></tool_call>",
            [("now", "{}"), ("free", "{}")],
        ),
        (
            "qwen3_coder",
            "<function=now>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            [("now", '{"a": "1"}')],
        ),
        (
            "qwen3_coder",
            "<tool_call><function=\"now\"><parameter='a'>1</parameter></parameter></function>",
            [("now", '{"a": "1"}')],
        ),
        ("minimax_m2", "<invoke name='now'><parameter name=a>1</parameter></invoke>", [("now", '{"a": "1"}')]),
        ("glm45", "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1\n</tool_call>", [("now", '{"a": "1\\n"}')]),
        (
            "minicpm5",
            '<function name="now"><param name="a"><![CDATA[</param> & <b>]]></param></function>',
            [("now", '{"a": "</param> & <b>"}')],
        ),
        ("minicpm5", "<function name='now'><param name='a'><![CDATA[cut]", [("now", '{"a": "cut]')]),
        ("minicpm5", "<function name='now'><param name='a'><![CDA", [("now", '{"a": "<![CDA')]),
        ("glm45", "<tool_call>now<tool_call>free</tool_call>", [("free", "{}")]),
    ],
)
def test_tags_left_out_cost_no_call(name, written, calls):
    text, found = whole(name, written)
    assert found == calls
    assert text == ("<tool_call>now" if name == "glm45" and len(found) == 1 and found[0][0] == "free" else "")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("qwen3_coder", "<tool_call>\nnothing\n</tool_call>"),
        ("qwen3_coder", "<tool_call></tool_call> x"),
        ("qwen3_coder", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'),
        ("qwen3_coder", "write <function=name> and so on"),
        ("qwen3_coder", "<tool_call><function=>"),
        ("qwen3_coder", "<tool_call><function=a b>"),
        ("qwen3_coder", "<tool_call><function=" + "a" * 999 + ">"),
        ("qwen3_coder", "a < b <tool_c"),
        ("minimax_m2", "<minimax:tool_call>\n<tool>now</tool>\n</minimax:tool_call>"),
        ("step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>{}<｜tool_call_end｜>"),
        ("glm45", '<tool_call>\n{"name": "now"}\n</tool_call>'),
        ("glm45", "<tool_call>now I wonder"),
        ("glm45", "<tool_call> " + "a" * 999),
        ("glm45", "<tool_call></tool_call>"),
        ("hy_v3", "<tool_calls><tool_call>now</tool_call></tool_calls>"),
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(name, written):
    assert whole(name, written) == (written, [])


SHREDS = st.sampled_from(
    [part for way in WAYS.values() for part in (way.begin, way.end_of_call, way.end, way.call, way.argument) if part]
    + ["now", "get_weather", "{", "}", "<", ">", '"', "\n", " ", "é", "hello", "</arg_value>", "<parameter=x>", "1"]
).map(lambda part: part.format(name="get_weather", key="days", value="5") if "{" in part and len(part) > 1 else part)


@every_format
@examples(60)
@given(shreds=st.lists(SHREDS, max_size=14), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_split_of_any_text_gives_the_same_text_and_calls(name, shreds, cuts):
    written = "".join(shreds)
    found = read(parser(name), [written])
    assert read(parser(name), list(written)) == found
    edges = [0, *sorted(cut % (len(written) + 1) for cut in cuts), len(written)]
    assert read(parser(name), [written[a:b] for a, b in pairwise(edges)]) == found
    if not found[1]:
        assert found[0] == written
    checked = read(parser(name, whole_answer=True), [written])
    assert read(parser(name, whole_answer=True), list(written)) == checked
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in checked[1])


@every_format
def test_an_output_has_no_more_calls_than_a_message_may_and_loses_no_character(name):
    call = WAYS[name].calls(("now", {}))
    text, found = read(parser(name), list(call * MAX_CALLS + "\n" + call))
    assert (len(found), text) == (MAX_CALLS, "\n" + call)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (
            "...<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1...",
            "qwen3_coder",
        ),
        (
            "{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + name + '>\\n' }}",
            "qwen3_coder",
        ),
        (
            "{%- set toolcall_begin_token = '<seed:tool_call>' -%}...<function={{ f }}>...<parameter={{ k }}>",
            "seed_oss",
        ),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}...<invoke name=...", "minimax_m2"),
        ("{{ '<｜tool_calls_begin｜>' }}...<steptml:invoke name=...", "step3"),
        ("<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>\\n<arg_value>", "glm45"),
        ("<tool_calls>\\n<tool_call>{{ name }}<tool_sep>\\n<arg_key>", "hy_v3"),
        ("<tool_call:opensource>{{ name }}<tool_sep:opensource>\\n", "hy_v3_opensource"),
        ('<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>', "hermes"),
    ],
)
def test_the_format_is_read_from_the_chat_template(template, name):
    assert choose("auto", Shown(source=template)).name == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("qwen3_xml", "qwen3_coder"),
        ("step3p5", "qwen3_coder"),
        ("nemotron_v3", "qwen3_coder"),
        ("glm47", "glm45"),
        ("minimax-m2", "minimax_m2"),
    ],
)
def test_other_engines_names_are_known(alias, name):
    assert choose(alias, "").name == name
