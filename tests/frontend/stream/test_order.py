"""Reasoning, text and calls come out in the order in which the model wrote them, wherever the tokens are cut."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from written_answers import FORMATS, HARMONY, answer_format, answers, events, told

from quire.frontend.parsing.tools.table import TOOL_FORMATS

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
BROKEN = CALL.replace("1", "oops")
CALLED = ["call f", '{"a": 1}']
THOUGHT, SO, HARMONY_CALL = HARMONY
WRITTEN = [
    ("hermes", "mistral", f"a {CALL} b", [["text", "a "], CALLED, ["text", " b"]]),
    ("hermes", "mistral", f"{CALL}{CALL}b{CALL}", [CALLED, CALLED, ["text", "b"], CALLED]),
    (
        "hermes",
        "mistral",
        f"a{CALL}[THINK]hm[/THINK]b[THINK]so[/THINK]{CALL}",
        [["text", "a"], CALLED, ["thought", "hm"], ["text", "b"], ["thought", "so"], CALLED],
    ),
    ("mistral", "mistral", "see [[THINK]hm[/THINK]TOOL", [["text", "see ["], ["thought", "hm"], ["text", "TOOL"]]),
    ("hermes", "mistral", CALL.replace("1", "[THINK]hm[/THINK]1") + "b", [CALLED, ["thought", "hm"], ["text", "b"]]),
    ("hermes", "qwen3", f"<think>hm</think>a{CALL}b", [["thought", "hm"], ["text", "a"], CALLED, ["text", "b"]]),
    ("mistral", "mistral", '[TOOL_CALLS]f{"a": 1}[THINK]hm[/THINK]b', [CALLED, ["thought", "hm"], ["text", "b"]]),
    (
        "openai",
        "auto",
        THOUGHT + HARMONY_CALL + THOUGHT + SO,
        [["thought", "hm"], CALLED, ["thought", "\nhm"], ["text", "so"]],
    ),
]


@pytest.mark.parametrize(("tools", "reasoning", "written", "parts"), WRITTEN)
def test_parts_come_in_the_order_in_which_they_were_written(tools, reasoning, written, parts):
    for whole in (False, True):
        for size in (1, 3, 20, len(written)):
            pieces = [written[at : at + size] for at in range(0, len(written), size)]
            assert told(events(pieces, answer_format(tools, reasoning), whole)) == parts


def test_what_a_whole_answer_takes_back_stands_where_it_was_written():
    written = f"a{BROKEN}[THINK]hm[/THINK]{CALL}b"
    parts = [["text", f"a{BROKEN}"], ["thought", "hm"], CALLED, ["text", "b"]]
    for pieces in ([written], list(written)):
        assert told(events(pieces, answer_format("hermes", "mistral"), whole=True)) == parts


def test_reasoning_in_a_broken_call_whose_rest_is_told_as_text_stands_in_that_text():
    written = "<function_calls>\nf(a=1, b=oops, c=[THINK]hm[/THINK]2)\n</function_calls>"
    told_call = ["call f", '{"a": 1']
    parts = [told_call, ["text", " b=oops, c="], ["thought", "hm"], ["text", "2)\n</function_calls>"]]
    for pieces in ([written], list(written)):
        assert told(events(pieces, answer_format("olmo3", "mistral"), whole=False)) == parts


def test_every_format_is_among_those_that_are_cut():
    assert set(FORMATS) == {row.name for row in TOOL_FORMATS}


def test_a_forced_call_that_is_cut_off_takes_no_text_before_it_along():
    written = THOUGHT + SO + HARMONY_CALL[: HARMONY_CALL.index("1}")]
    kind = answer_format("openai", "auto", tool_choice="required")
    for pieces in ([written], list(written)):
        assert told(events(pieces, kind, whole=True)) == [["thought", "hm"], ["text", "so"]]


@examples(120)
@given(answers(), st.sampled_from([None, "stop string"]))
def test_any_cut_of_any_answer_gives_the_same_parts_in_the_same_order(answer, stop):
    kind, pieces = answer
    written = "".join(pieces)
    for whole in (False, True):
        parts = told(events([written], kind, whole, stop))
        assert told(events(pieces, kind, whole, stop)) == parts
        assert told(events(list(written), kind, whole, stop)) == parts


@examples(60)
@given(answers())
def test_every_token_comes_once_beside_what_it_brought(answer):
    kind, pieces = answer
    found = events(pieces, kind, whole=False)
    assert [token for event in found for token in getattr(event, "token_ids", ())] == list(range(len(pieces)))


def test_a_hidden_thought_and_a_second_call_that_is_not_wanted_leave_no_gap():
    kind = answer_format("hermes", "mistral", show=False, parallel_tool_calls=False)
    written = f"a[THINK]hm[/THINK]b{CALL}{CALL}c"
    for whole in (False, True):
        for pieces in ([written], list(written)):
            found = events(pieces, kind, whole)
            assert told(found) == [["text", "ab"], CALLED, ["text", "c"]]
