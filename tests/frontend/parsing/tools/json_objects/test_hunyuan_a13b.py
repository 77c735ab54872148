"""Calls as JSON between <tool_calls> tags, in a list (Hunyuan) or one a line (MiniMax M1)."""

import sys
from pathlib import Path

import pytest

from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.tools.parser import MAX_CALLS
from quire.frontend.parsing.tools.table import choose

sys.path.insert(0, str(Path(__file__).parents[1] / "tagged"))  # collected in importlib mode, yet they share modules

from writing import parser, read, whole

CALL = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize(
    ("written", "text", "calls"),
    [
        (
            'ok\n<tool_calls>[{"name": "f", "arguments": {"a": "]"}}, {"arguments": {}, "name": "g"}]</tool_calls>\n',
            "ok\n",
            [("f", '{"a": "]"}'), ("g", "{}")],
        ),
        (f'<tool_calls>\n{CALL}\n{{"name": "f"}}\n</tool_calls> done', " done", [("now", "{}"), ("f", "{}")]),
        (f"<tool_calls>[{CALL}]</tool_calls>\n<tool_calls>[{CALL}]</tool_calls>", "", [("now", "{}")] * 2),
        (f"<tool_calls>[{CALL}", "", [("now", "{}")]),
        (f"<tool_calls>[{CALL} oops", " oops", [("now", "{}")]),
        ('<tool_calls>[{"name": "f", "arguments": {"a": [1,', "", [("f", '{"a": [1,')]),
        ("<tool_calls>[]</tool_calls> x", "<tool_calls>[]</tool_calls> x", []),
        ("<tool_calls>[f, g]</tool_calls>", "<tool_calls>[f, g]</tool_calls>", []),
        ('<tool_calls>[{"city": "Rome"}]</tool_calls>', '<tool_calls>[{"city": "Rome"}]</tool_calls>', []),
    ],
)
def test_calls_are_found_and_the_rest_stays_text(written, text, calls):
    assert whole("hunyuan_a13b", written) == (text, calls)


@pytest.mark.parametrize("step", [1, 9999])
def test_an_output_has_no_more_calls_than_a_message_may(step):
    written = "<tool_calls>[" + f"{CALL}," * MAX_CALLS + CALL
    text, calls = read(parser("hunyuan_a13b"), [written[at : at + step] for at in range(0, len(written), step)])
    assert (len(calls), text) == (MAX_CALLS, "," + CALL)


@pytest.mark.parametrize("unit", ["<tool_calls>", "[", ",", "{", '"', CALL, "<"])
def test_much_of_anything_is_read_to_its_end(unit):
    """The suite's time-out is the limit: nothing here may be more than linear."""
    written = "<tool_calls>[" + unit * ((1 << 17) // len(unit))
    text, calls = read(parser("hunyuan_a13b"), [written[at : at + 4096] for at in range(0, len(written), 4096)])
    assert len(text) > 1 << 16 or len(calls) == MAX_CALLS


def test_the_format_has_the_names_of_its_models():
    assert {choose(name, "").name for name in ("hunyuan", "minimax", "minimax_m1")} == {"hunyuan_a13b"}
    assert choose("auto", Shown(source="{{ '<tool_calls>[' }}")).name == "hunyuan_a13b"
