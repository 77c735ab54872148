"""Work on a model's output grows with its length, in every format, whatever the model writes and never closes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.frontend.parsing.reasoning.table import REASONING_FORMATS, ReasoningFormat
from quire.frontend.parsing.tools.forced import NamedParser, RequiredParser
from quire.frontend.parsing.tools.table import TOOL_FORMATS
from quire.proto.api import Tool

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from growth import check_linear, small_heap, written  # noqa: F401  # the fixture

OBJECT, PARAMETERS = '{"name": "f", "arguments": {"a": "', '{"name": "f", "parameters": {"a": "'
CODER = "<function=f>\n<parameter=a>\n"
DSML = '<｜DSML｜{0}invoke name="f"><｜DSML｜{0}parameter name="a" string="true">'
INVOKE = '<invoke name="f"><parameter name="a">'
BEGUN = {
    "openai": '<|channel|>commentary to=functions.f<|message|>{"a": "',
    "deepseek_v41": "<｜DSML｜ calls>" + DSML.format(" "),
    "deepseek_v4": "<｜DSML｜tool_calls>" + DSML.format(""),
    "deepseek_v32": "<｜DSML｜function_calls>" + DSML.format(""),
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "',
    "deepseek_v3": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": "',
    "kimi_k2": '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "',
    "gemma4": '<|tool_call>call:f{a:<|"|>',
    "functiongemma": "<start_function_call>call:f{a:<escape>",
    "seed_oss": "<seed:tool_call>" + CODER,
    "minimax_m2": "<minimax:tool_call>" + INVOKE,
    "minimax_m3": ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="a" type="string"<|sep|>',
    "dots": "<dots_function_call>" + INVOKE,
    "gigachat35": "<｜GCML｜tool_calls>" + DSML.format("").replace("DSML", "GCML"),
    "solar_open2": "<|tool_call:start|>f\n<|tool_arg:start|>a<|tool_arg:value|>",
    "minicpm5": '<function name="f"><param name="a"><![CDATA[',
    "step3": "<｜tool_calls_begin｜>" + INVOKE.replace("<invoke", "<steptml:invoke").replace("<p", "<steptml:p"),
    "hy_v3": "<tool_calls><tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>",
    "hy_v3_opensource": "<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>a"
    "</arg_key:opensource><arg_value:opensource>",
    "glm45": "<tool_call>f<arg_key>a</arg_key><arg_value>",
    "qwen3_coder": "<tool_call>" + CODER,
    "lfm2": '<|tool_call_start|>[f(a="',
    "olmo3": '<function_calls>f(a="',
    "llama4_pythonic": '<|python_start|>[f(a="',
    "pythonic": '[f(a="',
    "hunyuan_a13b": "<tool_calls>[" + OBJECT,
    "longcat": "<longcat_tool_call>" + OBJECT,
    "internlm": "<|action_start|><|plugin|>" + PARAMETERS,
    "gigachat3": "function call<|role_sep|>\n" + OBJECT,
    "cohere_command3": "<|START_ACTION|>[" + PARAMETERS,
    "apertus": '<|tools_prefix|>[{"f": {"a": "',
    "phi4_mini_json": "<|tool_call|>[" + OBJECT,
    "granite": "<|tool_call|>[" + OBJECT,
    "granite-20b-fc": "<function_call> " + OBJECT,
    "xlam": "```json\n[" + OBJECT,
    "hermes": "<tool_call>" + OBJECT,
    "mistral": "[TOOL_CALLS][" + OBJECT,
    "llama3_json": "<|python_tag|>" + PARAMETERS,
}
"""By format, a call up to the inside of its argument."""
PARSERS = {row.name: row.parser for row in TOOL_FORMATS}
FORCED = {"required": (RequiredParser, "[" + PARAMETERS), "named": (NamedParser, '{"a": "')}
TOOL = Tool("f", "", json.dumps({"type": "object", "properties": {"a": {"type": "string"}}}))
PIECE, NUM = 64, 16 << 10
"""Characters that come at once, and those of the shorter text: the other has four times as many."""
MOST = 6.5
"""Ratio of the times; a library's quick search through all of the text so far shows in little more."""


def texts(name: str) -> dict[str, tuple[str, str]]:
    """What stands at a text's beginning, and what is repeated behind it."""
    begun, mark = BEGUN[name], (next(iter(PARSERS[name].markers), "") or "[f(")
    return {
        "a long argument": (begun, "x"),
        "quotes, escapes and ends": (begun, '\\"</<｜<|]}'),
        "marks": ("", mark),
        "halves of marks": ("", mark[:-1]),
        "spaces": (mark, " \n"),
        "brackets": (mark, "[{("),
    }


KINDS = list(texts("hermes"))


def check(parser: Callable[[], object], begin: str, unit: str) -> None:
    check_linear(written(parser, lambda num: begin + unit * (num // len(unit)), PIECE), NUM, tries=1, most=MOST)


def test_every_format_has_its_row():
    assert set(BEGUN) == set(PARSERS)
    for name, parser in PARSERS.items():
        assert parser.of([TOOL]).feed(BEGUN[name] + "xx").text == "", name  # it is no prose


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", BEGUN)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_are_four_times_as_long_take_four_times_as_long(name, kind):
    begin, unit = texts(name)[kind]
    check(lambda: PARSERS[name].of([TOOL]), begin, unit)


@pytest.mark.parametrize("unit", ["]<]minimax[>[<x>", "]<]minimax[>[<x>1]<]minimax[>[</x>", "]<]minimax[>[</x>"])
def test_elements_within_elements_do_too(unit):
    tool = Tool("f", "", '{"properties": {"a": {"type": "object"}}}')
    check(lambda: PARSERS["minimax_m3"].of([tool]), BEGUN["minimax_m3"], unit)


@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize("unit", ["x", '\\"]}', '"}}, ' + PARAMETERS])
def test_forced_calls_do_too(name, unit):
    parser, begun = FORCED[name]
    check(lambda: parser.of([TOOL]), begun, unit)


def thoughts(row: ReasoningFormat) -> dict[str, tuple[str, str]]:
    answer = row.answer[0] if row.answer is not None else row.start
    return {
        "a long thought": (row.start, "hm "),
        "marks": ("", row.start),
        "halves of ends": (row.start, row.end[:-1]),
        "line breaks": (row.start, "\n"),
        "line breaks in the answer": (row.start + row.end + answer, "\n"),
        "halves of marks in the answer": (row.start + row.end, answer[:-1]),
    }


SPLIT = [row for row in REASONING_FORMATS if not row.is_joint]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("row", SPLIT, ids=lambda row: row.name)
@pytest.mark.parametrize("kind", thoughts(SPLIT[0]))
def test_reasoning_does_too(row, kind):
    begin, unit = thoughts(row)[kind]
    check(lambda: row.parser(True, may_reason=True, finds_calls=True), begin, unit)
