"""Special tokens that users spell in a chat are text, and nothing of it is lost."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.frontend.text.special_token_escape import (
    ESCAPE_CHARS,
)
from quire.proto.api import Chat, ChatMessage, Tool, ToolCall
from quire.proto.messages.params import ParameterError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from rendering import in_process, made

SHREDS = ["<|", "end", "|>", "<", "|", "a", " ", "turn|>", "<|end|>", "é"]
HOSTILE = st.lists(st.sampled_from(SHREDS), max_size=12).map("".join)


@examples(100)
@given(contents=st.lists(HOSTILE, min_size=1, max_size=4), role=HOSTILE.filter(lambda text: 1 <= len(text) <= 64))
def test_special_tokens_in_messages_are_text_and_nothing_is_lost(text_tokenizer, contents, role):
    """The template joins contents directly, so that neighbours could complete each other's special tokens."""
    template = made("<|start|>{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}")
    text, originals = in_process(template, Chat([ChatMessage(role, content) for content in contents]))
    ids = text_tokenizer.encode_template(text, originals)
    assert [token for token in ids if token in text_tokenizer.special_ids] == [2]
    plain = "".join(role + content for content in contents)
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>" + plain


@pytest.mark.parametrize("filter", ["tojson", "tojson(ensure_ascii=True)", "string"])
def test_special_tokens_in_tools_calls_and_kwargs_are_text(text_tokenizer, filter):
    bad = "<|end|>"
    source = (
        f"<|start|>{{{{ tools | {filter} }}}}{{{{ messages | {filter} }}}}{{{{ note }}}}"
        "{% for m in messages %}{{ m.name }}{{ m.tool_call_id }}{{ m.reasoning_content }}{% endfor %}"
    )
    call = ToolCall(bad, f"f{bad}", f'{{"{bad}": ["{bad}", {{"x": "{bad}"}}]}}')
    chat = Chat(
        [
            ChatMessage("assistant", bad, name=bad, reasoning=bad, tool_calls=[call, ToolCall("1", "g", bad)]),
            ChatMessage("tool", bad, tool_call_id=bad),
        ],
        tools=[Tool("f", bad, f'{{"type": "object", "properties": {{"{bad}": {{"enum": ["{bad}"]}}}}}}')],
        template_kwargs=f'{{"note": "{bad}"}}',
    )
    text, originals = in_process(made(source), chat)
    assert [token for token in text_tokenizer.encode_template(text, originals) if token < 3] == [2]
    assert text.translate(originals).count(bad) >= 14


@examples(50)
@given(text=HOSTILE)
def test_special_tokens_in_a_text_prompt_are_text(text_tokenizer, text):
    ids = text_tokenizer.encode(text)
    assert not text_tokenizer.special_ids.intersection(ids)
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_noncharacters_in_messages_survive(text_tokenizer, template):
    content = "".join(ESCAPE_CHARS[:-2]) + "<|end|>"
    text, originals = in_process(template, Chat([ChatMessage("user", content)]))
    assert content in text_tokenizer.decode(text_tokenizer.encode_template(text, originals), False)


def test_messages_that_use_every_noncharacter_are_refused_only_if_one_is_needed(template):
    template.job(Chat([ChatMessage("user", "".join(ESCAPE_CHARS))]))
    with pytest.raises(ParameterError, match="noncharacters"):
        template.job(Chat([ChatMessage("user", "".join(ESCAPE_CHARS) + "<|end|>")]))
