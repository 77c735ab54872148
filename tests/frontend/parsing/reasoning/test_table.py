"""The reasoning formats of the table: each told apart from the answer, by the request's own prompt and tools."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from parts.examples import examples
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from quire.frontend.parsing.formats import AnswerFormat, AnswerFormats, with_forced_calls, with_reasoning_first
from quire.frontend.parsing.reasoning.table import REASONING_FORMATS, choose
from quire.frontend.parsing.shown import Shown
from quire.proto.api import Chat, ChatMessage, GenerateRequest, Tool
from quire.proto.messages.params import Structured
from quire.proto.messages.structured import load_vocabulary, new_matcher

USER = [ChatMessage("user", "x")]


def format_of(name: str, prompt_end: str, tool_parser: str = "", **chat: object) -> AnswerFormat:
    found = AnswerFormats.choose(tool_parser, name, "").for_chat(Chat(USER, **chat), prompt_end, show_reasoning=True)
    assert found is not None
    return found


def read(answer_format: AnswerFormat, parts: list[str]) -> tuple[str, str]:
    parser = answer_format.reasoning_parser()
    if parser is None:
        return "", "".join(parts)
    splits = [*(parser.feed(part) for part in parts), parser.finish()]
    return "".join(split.reasoning for split in splits), "".join(split.text for split in splits)


def whole(answer_format: AnswerFormat, text: str) -> tuple[str, str]:
    """The reasoning and the answer, which do not depend on where the text is cut."""
    found = read(answer_format, [text])
    assert read(answer_format, list(text)) == found
    for cut in range(len(text)):
        assert read(answer_format, [text[:cut], text[cut:]]) == found
    return found


@pytest.mark.parametrize(
    ("name", "prompt_end", "written", "reasoning", "text"),
    [
        ("seed_oss", "assistant\n", "<seed:think>hm</seed:think>yes", "hm", "yes"),
        ("seed_oss", "<seed:think>x</seed:think>", "<seed:think>yes", "", "<seed:think>yes"),
        ("ernie45", "<think>\n", "hm\n</think>\n\n<response>\nyes\n\nno\n</response>\n", "hm", "yes\n\nno"),
        ("ernie45", "<think>\n", "hm\n</think>\n<tool_call>{}</tool_call>", "hm", "<tool_call>{}</tool_call>"),
        ("ernie45", "<think>\n", "hm</think><response>a</response>\n<tool_call>", "hm", "a<tool_call>"),
        ("ernie45", "<think>\n\n</think>\n", "<response>\nyes\n</response>", "", "yes"),
        ("ernie45", "<think>\n", "hm</think><response>\ncut off\n", "hm", "cut off\n"),
        ("ernie45", "<think>\n", "hm</think><respon", "hm", "<respon"),
        ("ernie45", "assistant\n", "hm</think>a</response>", "hm", "a</response>"),
        ("hunyuan_a13b", "\n", "<think>\nhm\n</think>\n<answer>\nyes\n</answer>", "hm", "yes"),
        ("hunyuan_a13b", "\n", "<think>\n\n</think>\n<answer>\nyes\n</answer>", "", "yes"),
        ("hunyuan_a13b", "\n", "<answer>yes</answer> and", "", "yes and"),
        ("hunyuan_a13b", "\n", "no marks, an <answer>", "", "no marks, an <answer>"),
        (
            "kimi_k3",
            "<|open|>think<|sep|>",
            "hm<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|>",
            "hm",
            "yes",
        ),
        (
            "kimi_k3",
            "<|close|>think<|sep|>",
            "<|open|>response<|sep|>I look<|close|>response<|sep|><|open|>tools<|sep|>...<|close|>message<|sep|>",
            "",
            "I look<|open|>tools<|sep|>...",
        ),
        ("kimi_k3", "<|open|>response<|sep|>", "yes<|close|>response<|sep|><|close|>message<|sep|>", "", "yes"),
        ("solar_open2", "<|think:start|>", "hm<|think:end|>yes", "hm", "yes"),
        ("solar_open2", "<|think:start|><|think:end|>", "yes", "", "yes"),
        ("apertus", "<|assistant_start|>", "<|inner_prefix|>hm<|inner_suffix|>yes", "hm", "yes"),
        ("minimax_m2", "]~b]ai\n<think>\n", "hm</think>\n\nyes", "hm", "yes"),
        ("minimax_m2_append_think", "]~b]ai\n<think>\n", "hm\n</think>\n\nyes", "", "<think>hm\n</think>\n\nyes"),
        ("minimax_m2_append_think", "]~b]ai\n", "yes", "", "yes"),
        ("glm45", "<|assistant|>", "\n<think>hm</think>\nyes", "hm", "yes"),
        ("glm47", "<|assistant|></think>", "yes", "", "yes"),
        ("nemotron_v3", "<think></think>", "yes", "", "yes"),
        ("step3p5", "<think>\n", "hm\n</think>\nyes", "hm", "yes"),
        ("step3", "assistant\n", "hm</think>yes", "hm", "yes"),
    ],
)
def test_every_format_is_split_however_it_arrives(name, prompt_end, written, reasoning, text):
    assert whole(format_of(name, prompt_end), written) == (reasoning, text)


@pytest.mark.parametrize("short", [False, True])
def test_granites_phrases_count_where_the_template_asks_for_them(short):
    here = "Here's" if short else "Here is"
    written = f"{here} my thought process:\nhm: Here is more\n{here} my response:\nyes"
    asked = format_of("granite", "<|end_of_role|>", template_kwargs='{"thinking": true}')
    assert whole(asked, written) == ("hm: Here is more", "yes")
    assert whole(format_of("granite", "<|end_of_role|>"), written) == ("", written)


@pytest.mark.parametrize("written", ["<response>\nyes\n</response>", "<response>yes", "yes"])
def test_granites_tags_count_where_the_template_asks_for_them(written):
    asked = format_of("granite33", "<|end_of_role|>", template_kwargs='{"thinking": true}')
    assert whole(asked, f"<think>\nhm\n</think>\n{written}") == ("hm", "yes")
    assert whole(asked, written) == ("", "yes")
    assert whole(format_of("granite33", "<|end_of_role|>"), f"yes {written}") == ("", f"yes {written}")


@pytest.mark.parametrize(
    ("reasoning", "tools", "mark"),
    [
        ("qwen3", "qwen3_coder", "<tool_call>"),
        ("glm45", "glm45", "<tool_call>"),
        ("seed_oss", "seed_oss", "<seed:tool_call>"),
        ("minimax_m2", "minimax_m2", "<minimax:tool_call>"),
        ("minimax_m3", "minimax_m3", "]<]minimax[>[<tool_call>"),
        ("solar_open2", "solar_open2", "<|tool_call:start|>"),
        ("apertus", "apertus", "<|tools_prefix|>"),
    ],
)
def test_a_call_ends_reasoning_that_was_not_closed_where_calls_are_looked_for(reasoning, tools, mark):
    begun = choose(reasoning, "").start
    written = f"I call {mark}..."
    offered = {"tools": [Tool("f")], "tool_parser": tools}
    assert whole(format_of(reasoning, begun, **offered), written) == ("I call ", f"{mark}...")
    assert whole(format_of(reasoning, begun), written) == (written, "")
    for choice in ("none", "required", "function:f"):
        assert whole(format_of(reasoning, begun, **offered, tool_choice=choice), written) == (written, "")


SPLIT = [row for row in REASONING_FORMATS if not row.is_joint]
OBJECT = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
TOOLS = [Tool("f", "", OBJECT)]
ANSWERS = {
    "json_object": (Structured("json_object"), {}, '{"a": 1}'),
    "json_schema": (Structured("json_schema", OBJECT), {}, '{"a":1}'),
    "choice": (Structured("choice", '["yes", "<no>"]'), {}, "<no>"),
    "regex": (Structured("regex", "[<a]+"), {}, "<a"),
    "required": (None, {"tools": TOOLS, "tool_choice": "required"}, '[{"name": "f", "parameters": {"a": 1}}]'),
    "named": (None, {"tools": TOOLS, "tool_choice": "function:f"}, '{"a": 1}'),
}
"""Structures of requests, and an answer of each."""
OFF = {"template_kwargs": '{"enable_thinking": false}'}


def constrained(name: str, prompt_end: str, answer: str, **more: object) -> Structured:
    """The grammar of a request's outputs where the parser is named by hand."""
    grammar, chat, _ = ANSWERS[answer]
    formats, asked = AnswerFormats.choose("hermes", name), Chat(USER, **chat, **more)
    request = with_forced_calls(GenerateRequest(input=asked, structured=grammar), asked, formats)
    return with_reasoning_first(request, formats.for_chat(asked, prompt_end, show_reasoning=True)).structured


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """How far a grammar follows a text, and whether the output may end there."""
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<think>"), AddedToken("</think>")])
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = load_vocabulary(folder, 264, (256,))

    def ends(structured: Structured, text: str) -> tuple[str, bool]:
        matcher = new_matcher(vocabulary, structured)
        ids, passed = tokenizer.encode(text).ids, 0
        while passed < len(ids) and allows(matcher, ids[passed]):
            assert matcher.consume_token(ids[passed])
            passed += 1
        return tokenizer.decode(ids[:passed], skip_special_tokens=False), allows(matcher, 256)

    return ends


def allows(matcher: LLMatcher, token: int) -> bool:
    return bool(matcher.compute_bitmask()[token >> 3] >> (token & 7) & 1)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("row", SPLIT, ids=lambda row: row.name)
def test_a_structure_begins_with_the_output_or_behind_a_thought_that_the_prompt_has_not_begun(row, answer, ends):
    switched = {row.switch: True} if row.switch else {"enable_thinking": False} if row.always else {}
    found = constrained(row.name, "assistant\n", answer, template_kwargs=json.dumps(switched))
    said = ANSWERS[answer][2]
    assert ends(found, said) == (said, True)
    for start, end in row.pairs:
        thought = f"{start}hm, {said} or so{end}"
        assert ends(found, thought + said) == (thought + said, True)
        assert ends(found, f"{start}hm") == (f"{start}hm", False)
    passed, may_end = ends(found, "hm, I think not")
    assert not passed.startswith("hm")
    assert not may_end


@pytest.mark.sampled(30)
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("row", SPLIT, ids=lambda row: row.name)
def test_a_structure_waits_for_the_thought_that_the_prompt_has_begun_and_for_no_other(row, answer, ends):
    said = ANSWERS[answer][2]
    on = {"template_kwargs": json.dumps({row.switch: True})} if row.switch else {}
    begun = constrained(row.name, f"{row.start}\n", answer, **on)
    for again in ("", row.start):  # models that always reason write the mark where no template has
        thought = f"{again}hm{row.end}"
        assert ends(begun, thought + said) == (thought + said, True)
    assert ends(begun, said) == (said, False)
    for prompt_end in (f"{row.start}\n\n{row.end}\n\n", *(row.answer or ())[:1]):
        over = constrained(row.name, prompt_end, answer, **on)
        assert ends(over, said) == (said, True)
        assert ends(over, f"hm{row.end}")[0] == ""


def test_a_model_that_always_reasons_does_so_unless_a_request_switches_it_off():
    for name in ("deepseek_r1", "ernie45"):
        assert constrained(name, "assistant\n", "choice").after == "</think>"
        for switch in ("enable_thinking", "thinking"):
            off = constrained(name, "assistant\n", "choice", template_kwargs=json.dumps({switch: False}))
            assert (off.after, off.thoughts) == ("", (("<think>", "</think>"),))
        assert whole(format_of(name, "assistant\n", **OFF), "<think>hm</think>yes") == ("hm", "yes")
        assert whole(format_of(name, "assistant\n", **OFF), "yes") == ("", "yes")


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    ("begun", "reasoning", "text"),
    [("Well, ", "", "so</think>"), ("<think>hm", "so", ""), ("<think>hm</think>Well", "", "so</think>")],
)
def test_what_a_client_has_begun_is_gone_on_with_as_what_it_is(name, begun, reasoning, text):
    chat = Chat([*USER, ChatMessage("assistant", begun)], continue_final_message=True)
    found = AnswerFormats.choose("", name).for_chat(chat, begun, show_reasoning=True)
    assert whole(found, "so</think>") == (reasoning, text)


@pytest.mark.parametrize(
    ("name", "begun", "said", "shown"),
    [
        ("granite33", "<think>hm</think><response>Well", "\n\nso</response>", ("", "\n\nso")),
        ("granite33", "<think>hm</think>\n", "\n<response>so</response>", ("", "so")),
        ("granite33", "<think>hm</think><response>", "\nso</response>", ("", "so")),
        ("granite33", "Well", "\n\nso</response>", ("", "\n\nso</response>")),
        ("granite33", "<think>hm", "so</think><response>yes</response>", ("so", "yes")),
        ("hunyuan_a13b", "<think>hm</think><answer>Well", " so</answer>", ("", " so")),
        ("granite", "Here is my thought process: hm", "so Here is my response:yes", ("so ", "yes")),
        ("granite", "Here's my thought process: hm", "so Here's my response:yes", ("so ", "yes")),
    ],
)
def test_marks_of_an_answer_or_thought_that_a_client_has_begun_are_taken_off(name, begun, said, shown):
    chat = Chat([*USER, ChatMessage("assistant", begun)], continue_final_message=True)
    found = AnswerFormats.choose("", name).for_chat(chat, begun, show_reasoning=True)
    assert whole(found, said) == shown


@pytest.mark.parametrize("space", ["", "\n"])
@pytest.mark.parametrize("row", [row for row in REASONING_FORMATS if row.answer], ids=lambda row: row.name)
def test_marks_of_an_answer_that_the_prompt_has_opened_are_taken_off(row, space):
    opening, closing = row.answer
    for prompt_end in (row.start + row.end + opening, opening):
        found = format_of(row.name, prompt_end + space)
        assert whole(found, f"{space}yes{space}{closing}") == ("", "yes")


def test_a_thought_is_looked_for_where_granites_template_asks_for_one():
    assert constrained("granite", "", "choice").thoughts == ()


@pytest.mark.parametrize("row", SPLIT, ids=lambda row: row.name)
@pytest.mark.parametrize("inside", [False, True])
@examples(60)
@given(data=st.data())
def test_any_split_of_any_text_gives_the_same(row, inside, data):
    marks = [row.start, row.end, *row.calls, *(row.answer or ()), "Here", "\n", " ", "a", "<", "</", "é"]
    shreds = data.draw(st.lists(st.sampled_from(marks), max_size=12))
    kwargs = {"template_kwargs": json.dumps({row.switch: True})} if row.switch else {}
    kind = format_of(row.name, row.start if inside else "", "hermes", tools=[Tool("f")], **kwargs)
    assert read(kind, shreds) == read(kind, ["".join(shreds)]) == read(kind, list("".join(shreds)))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{%- set think_begin_token = '<seed:think>' -%} '</seed:think>'", "seed_oss"),
        ("Write your thoughts after 'Here is my thought process:' and after 'Here is my response:'", "granite"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}...<think>...</think>", "minimax_m2"),
        ("<tool_call>{function-name}\\n<arg_key>...<think>...</think>", "qwen3"),
    ],
)
def test_the_format_is_read_from_the_chat_template(template, name):
    assert choose("auto", Shown(source=template)).name == name


def test_no_two_rows_have_a_name_in_common():
    names = [name for row in REASONING_FORMATS for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))
