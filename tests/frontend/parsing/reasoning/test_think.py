"""What a model thinks aloud is told apart from its answer, wherever it opens and closes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.parsing.reasoning.table import choose
from quire.frontend.parsing.reasoning.think import ThinkParser
from quire.frontend.parsing.shown import Shown

SHREDS = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "think>", "\n", " ", "a", "é"]), max_size=12)


def read(inside: bool, parts: list[str]) -> tuple[str, str]:
    parser = ThinkParser("<think>", "</think>", inside)
    splits = [*(parser.feed(part) for part in parts), parser.finish()]
    return "".join(split.reasoning for split in splits), "".join(split.text for split in splits)


@pytest.mark.parametrize(
    ("inside", "written", "reasoning", "text"),
    [
        (False, "<think>\nhm\n\nso\n</think>\n\nyes", "hm\n\nso", "yes"),
        (True, "hm\n</think>yes", "hm", "yes"),
        (True, "<think>\nhm</think>yes", "hm", "yes"),
        (True, "never closed\n", "never closed\n", ""),
        (False, "no <think>thoughts</think>", "", "no <think>thoughts</think>"),
        (False, "<think></think>yes</think>", "", "yes</think>"),
        (False, "<thin", "", "<thin"),
        (True, "a < b </thin", "a < b </thin", ""),
        (False, "", "", ""),
        (False, "\n\nyes", "", "\n\nyes"),
        (False, " " * 99 + "<think>x</think>", "", " " * 99 + "<think>x</think>"),
    ],
)
def test_reasoning_is_told_apart_however_it_arrives(inside, written, reasoning, text):
    for size in (1, 2, 5, 999):
        parts = [written[at : at + size] for at in range(0, len(written), size)]
        assert read(inside, parts) == (reasoning, text)


@pytest.mark.parametrize(
    ("written", "reasoning", "text"),
    [
        ("So. [THINK]hm\n[/THINK]\n\nyes", "hm", "So. yes"),
        ("[THINK]a[/THINK]b[THINK]c[/THINK]d", "ac", "bd"),
        ("x [THINK]never closed", "never closed", "x "),
        ("x [THIN", "", "x [THIN"),
        ("[THINK]a[/THINK]" * 5000, "a" * 5000, ""),
    ],
)
def test_marks_that_are_tokens_count_behind_text(written, reasoning, text):
    for size in (1, 3, len(written)):
        parser = choose("mistral", "").parser(False, may_reason=True, finds_calls=False)
        parts = [written[at : at + size] for at in range(0, len(written), size)]
        splits = [*map(parser.feed, parts), parser.finish()]
        assert ("".join(split.reasoning for split in splits), "".join(split.text for split in splits)) == (
            reasoning,
            text,
        )


@pytest.mark.parametrize(
    ("name", "written", "reasoning", "text"),
    [
        ("gemma4", "<|channel>thought\nhm\n<channel|>yes", "hm", "yes"),
        ("gemma4", "yes <|channel>thought\nhm<channel|> no", "hm", "yes  no"),
        ("gemma4", "<|channel>other", "", "<|channel>other"),
        ("kimi_k2", "<think>hm</think>yes", "hm", "yes"),
        ("kimi_k2", "<think>hm<|tool_calls_section_begin|>x", "hm", "<|tool_calls_section_begin|>x"),
        ("kimi", "◁think▷hm◁/think▷yes", "hm", "yes"),
        ("cohere_command3", "<|START_THINKING|>hm<|END_THINKING|>yes", "hm", "yes"),
        ("deepseek_v31", "yes", "", "yes"),
        ("olmo3", "<think>hm</think>yes", "hm", "yes"),
    ],
)
def test_other_marks_split_wherever_they_are_cut(name, written, reasoning, text):
    row = choose(name, "")
    for at in range(len(written) + 1):
        parser = row.parser(False, may_reason=True, finds_calls=True)
        splits = [parser.feed(written[:at]), parser.feed(written[at:]), parser.finish()]
        assert ("".join(split.reasoning for split in splits), "".join(split.text for split in splits)) == (
            reasoning,
            text,
        )


@examples(200)
@given(shreds=SHREDS, inside=st.booleans())
def test_any_split_of_any_text_gives_the_same(shreds, inside):
    written = "".join(shreds)
    assert read(inside, shreds) == read(inside, [written]) == read(inside, list(written))


def test_the_kind_is_read_from_the_chat_template():
    assert choose("auto", Shown(source="plain")) is None
    assert choose("auto", Shown(source="{{ '[THINK]' }} {{ '[/THINK]' }}")).name == "mistral"
    assert choose("auto", Shown(source="{{ '<think>' }} {{ content.split('</think>') }}")).name == "qwen3"
    assert choose("auto", Shown(source="{{ content.split('</think>')[-1] }}")) is None
    assert choose("", "<think>") is None
    assert choose("deepseek-r1", "").name == "deepseek_r1"
    with pytest.raises(ValueError, match="reasoning_parser: 'nope'"):
        choose("nope", "")


@pytest.mark.parametrize(
    ("name", "prompt_end", "inside", "over"),
    [
        ("qwen3", "assistant\n", False, False),
        ("qwen3", "assistant\n<think>\n", True, False),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", False, True),
        ("deepseek_r1", "assistant\n", True, False),
        ("deepseek_r1", "<think></think>", False, True),
    ],
)
def test_where_an_answer_begins_is_read_from_the_prompts_end(name, prompt_end, inside, over):
    row = choose(name, "")
    assert (row.starts_in_reasoning(prompt_end), row.closes_reasoning(prompt_end)) == (inside, over)
