"""The grammar of a harmony answer, compiled: thoughts are free, the answer or the call that follows them is not."""

from pathlib import Path

import msgspec
import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.proto.messages.channels import ChannelCall, Channels
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.messages.structured import load_vocabulary, new_matcher

MARKS = ["<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
ENDS = range(256, 258)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
ANSWER = Structured("json_schema", SCHEMA)
THOUGHT = "<|channel|>analysis<|message|>hm, final {<|end|><|start|>assistant"
PREAMBLE = THOUGHT.replace("analysis", "commentary")
FINAL, CALL = "<|channel|>final<|message|>", "<|channel|>commentary to=functions.{}<|message|>"
JSON_CALL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"
EITHER = Channels(ANSWER, (ChannelCall("f"), ChannelCall("f.g")))
FORCED = Channels(calls=(ChannelCall("f", msgspec.Raw(SCHEMA.encode())), ChannelCall("né")))


def of_bytes(marks: list[str]) -> Tokenizer:
    """One token a byte, and the marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer, folder: Path) -> LLTokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_vocabulary(folder, 264, tuple(ENDS))


@pytest.fixture(scope="module")
def tokenizer():
    return of_bytes(MARKS)


@pytest.fixture(scope="module")
def vocabulary(tokenizer, tmp_path_factory):
    return vocabulary_of(tokenizer, tmp_path_factory.mktemp("harmony"))


def channels(wanted: Channels) -> Structured:
    return Structured("channels", msgspec.json.encode(wanted).decode())


@pytest.fixture
def follow(tokenizer, vocabulary):
    """The part of a text that the grammar lets through, and whether the output may end behind it."""

    def follow(wanted: Channels, text: str) -> tuple[str, bool]:
        matcher = new_matcher(vocabulary, channels(wanted))

        def allows(token: int) -> bool:
            return bool(matcher.compute_bitmask()[token >> 3] >> (token & 7) & 1)

        passed: list[int] = []
        for token in tokenizer.encode(text).ids:
            if not allows(token):
                break
            assert matcher.consume_token(token)
            passed.append(token)
        return tokenizer.decode(passed, skip_special_tokens=False), any(map(allows, ENDS))

    return follow


@pytest.mark.parametrize("before", ["", THOUGHT, THOUGHT * 2 + PREAMBLE])
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Channels(ANSWER), FINAL + '{"a": 1}'),
        (Channels(ANSWER), FINAL.replace("final", "final <|constrain|>json") + '{"a":1}'),
        (Channels(Structured("json_object")), FINAL + '{"x":[]}'),
        (Channels(Structured("regex", "[ab]+")), FINAL + "abba"),
        (Channels(Structured("choice", '["yes", "no"]')), FINAL + "no"),
        (Channels(Structured("grammar", 'root ::= "q"+')), FINAL + "qq"),
        (EITHER, FINAL + '{"a": 1}'),
        (EITHER, JSON_CALL.format("f") + '{"any": ["thing"]}'),
        (EITHER, CALL.format("f.g") + "{}"),
        (FORCED, CALL.format("f") + '{"a": 2}'),
        (FORCED, JSON_CALL.format("né") + "{}"),
    ],
)
def test_a_message_in_the_language_passes_behind_thoughts_and_ends_the_output(follow, wanted, before, message):
    assert follow(wanted, before + message) == (before + message, True)


@pytest.mark.parametrize(
    ("wanted", "passes", "not_beyond"),
    [
        (Channels(ANSWER), "", '{"a": 1}'),
        (Channels(ANSWER), THOUGHT + FINAL + '{"a": ', "x"),
        (Channels(ANSWER), THOUGHT + "<|channel|>commentary", " to=functions.f"),
        (Channels(ANSWER), "<|channel|>analysis<|message|>hm", "<|return|>"),
        (EITHER, THOUGHT + "<|channel|>commentary to=functions.f", "oo"),
        (EITHER, THOUGHT + CALL.format("f"), "[]"),
        (FORCED, THOUGHT + "<|channel|>", "final"),
        (FORCED, THOUGHT + CALL.format("f") + '{"', "b"),
        (FORCED, THOUGHT + CALL.format("f") + '{"a": 2}', "<|end|>"),
    ],
)
def test_no_other_text_passes(follow, wanted, passes, not_beyond):
    assert follow(wanted, passes + not_beyond)[0] == passes


def test_a_message_that_the_prompt_has_begun_ends_first(follow):
    begun = "so<|end|><|start|>assistant"
    assert follow(Channels(ANSWER, in_message=True), begun + THOUGHT + FINAL + '{"a": 1}')[1]
    assert follow(Channels(ANSWER, in_message=True), FINAL) == ("", False)


def test_marks_that_the_model_has_no_tokens_for_are_matched_as_text(tmp_path):
    tokenizer = of_bytes(MARKS[:2])
    matcher = new_matcher(vocabulary_of(tokenizer, tmp_path), channels(Channels(ANSWER)))
    assert matcher.consume_tokens(tokenizer.encode(THOUGHT + FINAL + '{"a":1}').ids)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Channels(Structured("regex", "(")), "regex: .*unclosed group"),
        (Channels(Structured("json_schema", "{")), "json_schema: is no JSON"),
        (Channels(calls=(ChannelCall("f", msgspec.Raw(b'{"uniqueItems": true}')),)), "json_schema: .*uniqueItems"),
        (Channels(calls=(ChannelCall("f", msgspec.Raw(b"[" * 40 + b"]" * 40)),)), "json_schema: nests 40 levels deep"),
    ],
)
def test_what_does_not_compile_is_told_as_what_the_client_said(vocabulary, wanted, told):
    with pytest.raises(ParameterError, match=f"(?s)structured: {told}"):
        new_matcher(vocabulary, channels(wanted))


def test_free_text_ends_at_a_mark_of_several_tokens(tokenizer, vocabulary):
    """As Kimi K3's reasoning does."""
    matcher = new_matcher(vocabulary, Structured("regex", "[ab]+", after="<|end|>think<|message|>"))
    for text, passes in (("hm, think", True), ("<|message|>", False), ("<|end|>thi", True), ("s", False), ("nk", True)):
        tokens = tokenizer.encode(text).ids
        assert matcher.validate_tokens(tokens) == (len(tokens) if passes else 0), text
        assert not passes or matcher.consume_tokens(tokens)
    assert matcher.consume_tokens(tokenizer.encode("<|message|>ab").ids)
    assert matcher.is_accepting()


@pytest.mark.parametrize("before", ["", "<|start|>think<|message|>hm, <|end|>think<|message|>"])
def test_free_text_between_marks_of_several_tokens_may_come_or_not(tokenizer, vocabulary, before):
    pair = ("<|start|>think<|message|>", "<|end|>think<|message|>")
    matcher = new_matcher(vocabulary, Structured("regex", "[ab]+", thoughts=(pair,)))
    assert matcher.consume_tokens(tokenizer.encode(before + "ab").ids)
    assert matcher.is_accepting()
