"""gpt-oss's channels come apart into reasoning, calls and the answer, one parser for all of them."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.parsing.formats import AnswerFormats, with_forced_calls, with_reasoning_first
from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.tools.marked_calls.harmony import HarmonyParser
from quire.proto.api import Chat, ChatMessage, GenerateRequest, Tool
from quire.proto.messages.channels import ChannelCall, Channels
from quire.proto.messages.params import Structured

THINK = "<|channel|>analysis<|message|>hm, <b>{}<|end|>"
CALL = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{'a': 1}<|call|>".replace(
    "'", '"'
)
FINAL = "<|start|>assistant<|channel|>final<|message|>It is\n5.<|return|>"
CASES = [
    (THINK + FINAL, "hm, <b>{}", "It is\n5.", []),
    (THINK + CALL, "hm, <b>{}", "", [("f", '{"a": 1}')]),
    (THINK + CALL.removesuffix("<|call|>"), "hm, <b>{}", "", [("f", '{"a": 1}')]),
    (
        "<|channel|>commentary<|message|>Let me look.<|end|>" + CALL + CALL + FINAL,
        "",
        "Let me look.\nIt is\n5.",
        [("f", '{"a": 1}')] * 2,
    ),
    (THINK + "<|start|>assistant" + THINK, "hm, <b>{}\nhm, <b>{}", "", []),
    (" to=functions.f<|channel|>commentary json<|message|><|call|>", "", "", [("f", "{}")]),
    ("<|channel|>analysis to=functions.f code<|message|>{}<|call|>", "", "", [("f", "{}")]),
    ("<|channel|>commentary to=g<|message|>{}<|call|>", "", "", [("g", "{}")]),
    ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "1 + 1", "", []),
    ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}", []),
    ("<|channel|>analysis<|message|>no end<|channel|>final<|message|>yes", "no end", "yes", []),
    ("<|channel|>analysis<|message|>cut <|en", "cut <|en", "", []),
    ("<|channel|>comment", "", "", []),
    ('[{"name": "forced"}]', "", '[{"name": "forced"}]', []),
    ("to be sure", "", "to be sure", []),
    ("assistant " * 99, "", "assistant " * 99, []),
]


def read(parts: list[str], names: frozenset[str] = frozenset({"f", "g"}), whole: bool = False):
    parser = HarmonyParser(names)
    parser.checks_arguments = whole
    pieces = [*map(parser.feed, parts), parser.finish()]
    calls: list[list[str]] = []
    for delta in (delta for piece in pieces for delta in piece.calls):
        if delta.name:
            calls.append([delta.name, ""])
        calls[-1][1] += delta.arguments
    texts = ("".join(piece.reasoning for piece in pieces), "".join(piece.text for piece in pieces))
    return *texts, [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(("written", "reasoning", "text", "calls"), CASES)
def test_channels_come_apart_wherever_the_pieces_are_cut(written, reasoning, text, calls):
    for whole in (False, True):
        for at in range(len(written) + 1):
            assert read([written[:at], written[at:]], whole=whole) == (reasoning, text, calls)
        assert read(list(written), whole=whole) == (reasoning, text, calls)


SHREDS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "assistant", "analysis", "final", "{}", "x"]
SHREDS += ["to=functions.f", "commentary ", "\n", " ", "<|", THINK, CALL, FINAL]


@examples(200)
@given(shreds=st.lists(st.sampled_from(SHREDS), max_size=12), whole=st.booleans())
def test_any_split_of_any_text_gives_the_same(shreds, whole):
    written = "".join(shreds)
    assert read(shreds, whole=whole) == read([written], whole=whole) == read(list(written), whole=whole)


def test_without_tools_a_call_is_text_and_a_whole_answer_gives_a_broken_one_back():
    assert read([CALL], frozenset()) == ("", '{"a": 1}', [])
    broken = "<|channel|>commentary to=functions.f<|message|>{oops"
    assert read([broken + "<|call|>"], whole=True) == ("", broken, [])


HI, TOOL = [ChatMessage("user", "hi")], Tool("f")
TEMPLATE = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}"


def test_both_settings_choose_the_one_parser_and_every_chat_has_it():
    for tool, reasoning, template in (("openai", "auto", ""), ("auto", "gpt-oss", ""), ("auto", "auto", TEMPLATE)):
        shown = Shown(source=template)
        formats = AnswerFormats.choose(tool, reasoning, shown)
        assert (formats.tools.name, formats.reasoning.name) == ("openai", "openai")
        chats = [Chat(HI), Chat(HI, tools=[TOOL]), Chat(HI, tools=[TOOL], tool_choice="none")]
        for chat, num_offered in zip(chats, (0, 1, 0), strict=True):
            answer_format = formats.for_chat(chat, "<|start|>assistant", True)
            assert answer_format.reasoning_parser() is None
            assert isinstance(answer_format.tool_parser(False), HarmonyParser)
            assert len(answer_format.offered) == num_offered
            assert {"<|channel|>", "<|message|>", "<|end|>"} <= answer_format.markers
            assert not answer_format.starts_in_reasoning
    without_calls = AnswerFormats.choose("", "auto", Shown(source=TEMPLATE + FINAL))
    assert without_calls.tools is None
    assert without_calls.for_chat(Chat(HI, tools=[TOOL]), "", True).offered == ()
    with pytest.raises(ValueError, match="tool_call_parser: 'hermes' does not go with openai"):
        AnswerFormats.choose("hermes", "openai")
    with pytest.raises(ValueError, match="reasoning_parser: 'qwen3' does not go with openai"):
        AnswerFormats.choose("openai", "qwen3")


START = "<|start|>assistant"
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
JSON = Structured("json_object")


def wanted(prompt_end: str, grammar: Structured | None = None, **chat: object) -> Structured:
    """The grammar of a request's answers."""
    formats = AnswerFormats.choose("openai", "auto")
    asked = Chat(HI, **chat)
    request = with_forced_calls(GenerateRequest(input=asked, structured=grammar), asked, formats)
    return with_reasoning_first(request, formats.for_chat(asked, prompt_end, True)).structured


def channels(found: Structured) -> Channels:
    assert found.kind == "channels"
    return msgspec.json.decode(found.text, type=Channels)


def test_a_grammar_is_that_of_the_final_message_or_of_a_call_in_its_place():
    assert channels(wanted(START, JSON)) == Channels(JSON)
    assert channels(wanted(START, JSON, tools=[TOOL])) == Channels(JSON, (ChannelCall("f"),))
    assert channels(wanted(START, JSON, tools=[TOOL], tool_choice="none")) == Channels(JSON)
    assert channels(wanted(START + "<|channel|>analysis<|message|>", JSON)) == Channels(JSON, in_message=True)
    assert wanted(START + "<|channel|>final<|message|>", JSON) == JSON
    begun = {"continue_final_message": True, "add_generation_prompt": False}
    assert wanted(START + "<|channel|>final<|message|>hi", JSON, **begun) == JSON
    assert wanted(START, None, tools=[TOOL]) is None


def test_a_forced_call_is_in_its_own_channel():
    tools = [Tool("f", "", SCHEMA), Tool("g")]
    for choice, names in (("required", ["f", "g"]), ("function:g", ["g"])):
        for end in ("", "<|channel|>analysis<|message|>"):
            forced = channels(wanted(START + end, tools=tools, tool_choice=choice))
            assert (forced.answer, [call.name for call in forced.calls]) == (None, names)
            assert forced.in_message == bool(end)
            assert json.loads(bytes(forced.calls[-1].schema))["additionalProperties"] is False
            assert len(names) == 1 or json.loads(bytes(forced.calls[0].schema)) == json.loads(SCHEMA)


def test_a_thought_that_the_prompt_has_begun_is_read_as_one():
    asked = Chat(HI, tools=[TOOL])
    answer_format = AnswerFormats.choose("openai", "auto").for_chat(asked, TEMPLATE[4:-4], True)
    for whole in (False, True):
        parser = answer_format.tool_parser(whole)
        pieces = [parser.feed("hm<|end|>" + CALL), parser.finish()]
        assert "".join(piece.reasoning for piece in pieces) == "hm"
        assert [call.name for piece in pieces for call in piece.calls] == ["f"]


def test_the_rest_of_a_forced_call_that_was_cut_off_is_no_content():
    asked = Chat(HI, tools=[TOOL], tool_choice="required")
    answer_format = AnswerFormats.choose("openai", "auto").for_chat(asked, START, True)
    for end in range(THINK.index("hm"), len(THINK + CALL)):
        parser = answer_format.tool_parser(True)
        pieces = [parser.feed((THINK + CALL)[:end]), parser.finish()]
        assert "".join(piece.text for piece in pieces) == ""
