"""Every format's calls, as its models write them, are found wherever the text is cut, and nothing else is lost."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.parsing.tools.table import choose

NAMES = frozenset({"f", "get_weather"})
V3, V31 = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
KIMI_CALL = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
NESTED = {"city": 'Zürich "}"\n', "at": [1, {"b": None, "c": [True, -2.5]}], "o": {}}
A = json.dumps(NESTED, ensure_ascii=False)


def v3(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def objects(*calls: tuple[str, str], key: str = "arguments", name: str = "name") -> list[str]:
    return [f'{{"{name}": "{called}", "{key}": {arguments}}}' for called, arguments in calls]


TWO = (("get_weather", A), ("f", "{}"))
LIST = "[" + ", ".join(objects(*TWO)) + "]"
PYTHON = """get_weather(city='Zürich "}"\\n', at=[1, {'b': None, 'c': [True, -2.5]}], o={})"""
GEMMA = '<|tool_call>call:get_weather{city:<|"|>Zürich "}"\n<|"|>,at:[1,{b:null,c:[true,-2.5]}],o:{}}<tool_call|>'
CALLS = [
    ("deepseek_v3", "ok " + V3.format(v3("get_weather", A) + "\n" + v3("f", "{}")), "ok "),
    ("deepseek_v31", "ok " + V3.format(V31.format("get_weather", A) + V31.format("f", "{}")), "ok "),
    ("deepseek_v31", V31.format("get_weather", A) + "\n" + V31.format("f", ""), ""),
    ("deepseek_v31", V31.format("get_weather", A) + V31.format("f", "null"), ""),
    ("deepseek_v3", v3("get_weather", A) + v3("f", "null"), ""),
    (
        "deepseek_v32",
        "ok\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Zürich "}"\n'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="at" string="false">[1, {"b": null, "c": [true, -2.5]}]'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="o" string="false">{}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "ok\n",
    ),
    (
        "deepseek_v41",
        "ok\n<｜DSML｜ calls>\n"
        '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Zürich "}"\n'
        '</｜DSML｜ parameter>\n<｜DSML｜ parameter name="at" string="false">[1, {"b": null, "c": [true, -2.5]}]'
        '</｜DSML｜ parameter>\n<｜DSML｜ parameter name="o" string="false">{}</｜DSML｜ parameter>\n'
        '</｜DSML｜ invoke>\n<｜DSML｜ invoke name="f">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        "ok\n",
    ),
    (
        "gigachat35",
        "ok\n<｜GCML｜tool_calls>\n"
        '<｜GCML｜invoke name="get_weather">\n<｜GCML｜parameter name="city" string="true">Zürich "}"\n'
        '</｜GCML｜parameter>\n<｜GCML｜parameter name="at" string="false">[1, {"b": null, "c": [true, -2.5]}]'
        '</｜GCML｜parameter>\n<｜GCML｜parameter name="o" string="false">{}</｜GCML｜parameter>\n</｜GCML｜invoke>\n'
        '<｜GCML｜invoke name="f">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>',
        "ok\n",
    ),
    (
        "kimi_k3",
        "ok <|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Zürich "}"\n<|close|>argument<|sep|>'
        '<|open|>argument key="at" type="array"<|sep|>[1, {"b": null, "c": [true, -2.5]}]<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{}<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="f" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        "ok ",
    ),
    ("apertus", f'ok <|tools_prefix|>[{{"get_weather": {A}}}, {{"f": {{}}}}]<|tools_suffix|> done', "ok  done"),
    ("kimi_k2", "ok " + KIMI.format(KIMI_CALL.format("get_weather", 0, A) + KIMI_CALL.format("f", 1, "{}")), "ok "),
    ("gemma4", f"ok {GEMMA}<|tool_call>call:f{{}}<tool_call|>", "ok "),
    (
        "functiongemma",
        '<start_function_call>call:get_weather{city:<escape>Zürich "}"\n<escape>,at:[1,{b:None,c:[true,-2.5]}],o:{}}'
        "<end_function_call><start_function_call>call:f{}<end_function_call>",
        "",
    ),
    ("lfm2", f"ok <|tool_call_start|>[{PYTHON}, f()]<|tool_call_end|> done", "ok  done"),
    ("olmo3", f"ok <function_calls>\n{PYTHON}\nf()\n</function_calls>", "ok "),
    ("llama4_pythonic", f"<|python_start|>[{PYTHON}, f()]<|python_end|>", ""),
    ("llama4_pythonic", f"[{PYTHON}, f()]", ""),
    ("longcat", "ok " + "\n".join(f"<longcat_tool_call>\n{one}\n</longcat_tool_call>" for one in objects(*TWO)), "ok "),
    (
        "internlm",
        "ok "
        + "".join(f"<|action_start|><|plugin|>\n{one}<|action_end|>\n" for one in objects(*TWO, key="parameters")),
        "ok ",
    ),
    ("gigachat3", "ok " + "".join(f"function call<|role_sep|>\n{one}" for one in objects(*TWO)), "ok "),
    (
        "cohere_command3",
        "ok <|START_ACTION|>[\n" + ",".join(objects(*TWO, key="parameters", name="tool_name")) + "\n]<|END_ACTION|>",
        "ok ",
    ),
    ("phi4_mini_json", f"functools{LIST}", ""),
    ("phi4_mini_json", f"<|tool_call|>{LIST}<|/tool_call|>", ""),
    ("granite", f"<|tool_call|>{LIST}", ""),
    ("granite", f"<|tool_call|>{LIST.replace('{}}]', 'null}]')}", ""),
    ("granite", f"<tool_call> {LIST}", ""),
    ("granite-20b-fc", "".join(f"<function_call> {one} " for one in objects(*TWO)), ""),
    ("jamba", f"ok <tool_calls>{LIST}</tool_calls>", "ok "),
    ("xlam", LIST, ""),
    ("xlam", f"ok\n```json\n{LIST}\n```", "ok\n"),
    (
        "openai",
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{A}<|call|>"
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "",
    ),
]
NONE = [
    ("deepseek_v3", V3.format("")),
    ("deepseek_v3", V3.format(v3("f", "none"))),
    ("deepseek_v31", V31.format("not a name", "{}")),
    ("kimi_k2", KIMI.format("what")),
    ("kimi_k2", "<|tool_call_begin|>" + "f" * 999),
    ("gemma4", "<|tool_call>f{}<tool_call|>"),
    ("gemma4", "a { b <|tool_ca"),
    ("functiongemma", "<start_function_call>call:f"),
    ("lfm2", "[f()]"),
    ("lfm2", "<|tool_call_start|>f()<|tool_call_end|>"),
    ("olmo3", "<function_calls></function_calls>"),
    ("olmo3", "<function_calls>f(oops)\n</function_calls>"),
    ("llama4_pythonic", "[unheard_of(a=1)]"),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call index="1"<|sep|><|close|>call<|sep|>'),
    ("kimi_k3", '<|open|>call tool="f"> and so on'),
    ("apertus", '<|tools_prefix|>[{"f": 1}]'),
    ("apertus", "<|tools_prefix|>[{}]<|tools_suffix|>"),
    ("longcat", "<longcat_tool_call>{oops}</longcat_tool_call>"),
    ("internlm", "<|action_start|><|interpreter|>\n1<|action_end|>"),
    ("gigachat3", "function call<|role_sep|>\nnone"),
    ("phi4_mini_json", 'functools[{"name": "unheard_of", "arguments": {}}]'),
    ("phi4_mini_json", "Use functools.partial"),
    ("granite", "<tool_call>[]"),
    ("xlam", '[{"name": "Alice", "arguments": {}}]'),
    ("xlam", '```json\n{"a": 1}\n```'),
    ("openai", "just text"),
    ("deepseek_v32", "<｜DSML｜function_calls>\n</｜DSML｜function_calls>"),
]
FORMATS = sorted({name for name, *_ in CALLS})


def read(
    name: str, parts: list[str], whole: bool = False, names: frozenset[str] = NAMES
) -> tuple[str, list[tuple[str, str]]]:
    parser = choose(name, "").parser(names)
    parser.checks_arguments = whole
    text, calls = "", list[list[str]]()
    for piece in [*map(parser.feed, parts), parser.finish()]:
        text += piece.text
        for delta in piece.calls:
            if delta.index == len(calls):
                assert delta.id
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    return text, [(name, arguments) for name, arguments in calls]


def cut(written: str, size: int) -> list[str]:
    return [written[at : at + size] for at in range(0, len(written), size)]


@pytest.mark.parametrize(("name", "written", "text"), CALLS)
def test_several_calls_with_nested_values_are_found_wherever_they_are_cut(name, written, text):
    for whole in (False, True):
        for size in (1, 2, 3, 5, 11, len(written)):
            found, calls = read(name, cut(written, size), whole)
            assert (found, [called for called, _ in calls]) == (text, ["get_weather", "f"])
            assert [json.loads(arguments) for _, arguments in calls] == [NESTED, {}]
        for at in range(len(written)):
            assert read(name, [written[:at], written[at:]], whole) == (found, calls)


@pytest.mark.parametrize(("name", "written", "text"), CALLS)
def test_a_function_has_any_name_that_a_request_may_give_it(name, written, text):
    for called in ("mcp.tools.get", "ns:tools/get-2", "wetter_für_東京", "7"):
        renamed, names = written.replace("get_weather", called), frozenset({called, "f"})
        found, calls = read(name, [renamed], names=names)
        assert (found, [one for one, _ in calls]) == (text, [called, "f"])
        assert read(name, list(renamed), names=names) == (found, calls)


def test_a_call_has_the_id_that_the_model_gave_it():
    written = KIMI.format(KIMI_CALL.format("get_weather", 3, A) + KIMI_CALL.format("f", 4, "{}"))
    deltas = choose("kimi_k2", "").parser(NAMES).feed(written).calls
    assert [delta.id for delta in deltas if delta.id] == ["functions.get_weather:3", "functions.f:4"]


@pytest.mark.parametrize(("name", "written"), NONE)
def test_what_is_no_call_is_text_to_the_last_character(name, written):
    for whole in (False, True):
        for size in (1, 2, 3, len(written)):
            assert read(name, cut(written, size), whole) == (written, [])


@pytest.mark.parametrize(("name", "written", "text"), CALLS)
def test_a_call_that_was_cut_off_is_a_cut_call_in_a_stream_and_text_in_a_whole_answer(name, written, text):
    at = written.index("-2.5")
    _, calls = read(name, [written[:at]])
    if calls:
        assert calls[0][0] == "get_weather"
        with pytest.raises(ValueError, match="column"):
            json.loads(calls[0][1])
    found, calls = read(name, [written[:at]], whole=True)
    assert calls == []
    assert found.endswith(written[at - 20 : at])


SHREDS = {
    name: [part for written in (w for n, w, *_ in CALLS if n == name) for part in cut(written, 9)]
    + [
        *choose(name, "").parser.markers,
        "{",
        "}",
        '"',
        "[",
        "]",
        "(",
        ")",
        ",",
        ":",
        "f",
        " ",
        "\n",
        "é",
        "<",
        "call:f{",
    ]
    for name in FORMATS
}


@pytest.mark.parametrize("name", FORMATS)
@examples(30)
@given(data=st.data())
def test_any_split_of_any_text_gives_the_same(name, data):
    shreds = data.draw(st.lists(st.sampled_from(SHREDS[name]), max_size=14))
    written = "".join(shreds)
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6))), len(written)]
    for whole in (False, True):
        text, calls = read(name, [written], whole)
        assert read(name, [written[a:b] for a, b in pairwise(edges)], whole) == (text, calls)
        assert read(name, list(written), whole) == (text, calls)
        if not calls and name != "openai":
            assert text == written
