"""Chat templates: what templates may do, what users may not."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.frontend.chat import STAND_INS, ChatTemplate, TemplateError, load_template
from quire.frontend.tokenizer import TextTokenizer
from quire.proto.api import Chat, ChatMessage
from quire.proto.params import ParameterError

SPECIALS = ("<|end|>", "<|turn|>", "<|start|>")
SHREDS = ["<|", "end", "|>", "<", "|", "a", " ", "turn|>", "<|end|>", "é"]
HOSTILE = st.lists(st.sampled_from(SHREDS), max_size=12).map("".join)


@pytest.fixture(scope="module")
def text_tokenizer(model_dir):
    return TextTokenizer(str(model_dir))


@pytest.fixture(scope="module")
def template(model_dir):
    return load_template(str(model_dir), "", SPECIALS)


def render(source: str, *messages: ChatMessage, **flags: bool) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, SPECIALS)
    return template.render(Chat(messages or (ChatMessage("user", "hi"),), **flags))[0]


def test_a_chat_is_rendered_as_the_template_says(template):
    chat = Chat([ChatMessage("system", "be kind"), ChatMessage("user", "hi")])
    text, _ = template.render(chat)
    assert text == "<|turn|>system\nbe kind<|end|>\n<|turn|>user\nhi<|end|>\n<|turn|>assistant\n"


def test_template_tokens_parse_and_the_same_ids_as_the_library_result(template, text_tokenizer, tokenizer):
    text, disguises = template.render(Chat([ChatMessage("user", "the quick fox 🙂")]))
    assert text_tokenizer.encode_template(text, disguises) == tokenizer.encode(text, add_special_tokens=False).ids


@settings(max_examples=200, deadline=None)
@given(contents=st.lists(HOSTILE, min_size=1, max_size=4), role=HOSTILE.filter(lambda text: 1 <= len(text) <= 64))
def test_special_tokens_in_messages_are_text_and_nothing_is_lost(text_tokenizer, contents, role):
    """The template joins contents directly, so that neighbours could complete each other's special tokens."""
    template = ChatTemplate("<|start|>{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}", {}, SPECIALS)
    text, disguises = template.render(Chat([ChatMessage(role, content) for content in contents]))
    ids = text_tokenizer.encode_template(text, disguises)
    assert [token for token in ids if token in text_tokenizer.special_ids] == [2]
    plain = "".join(role + content for content in contents)
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>" + plain


@settings(max_examples=100, deadline=None)
@given(text=HOSTILE)
def test_special_tokens_in_a_text_prompt_are_text(text_tokenizer, text):
    ids = text_tokenizer.encode(text)
    assert not text_tokenizer.special_ids.intersection(ids)
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_noncharacters_in_messages_survive(text_tokenizer, template):
    content = "".join(STAND_INS[:-2]) + "<|end|>"
    text, disguises = template.render(Chat([ChatMessage("user", content)]))
    assert content in text_tokenizer.decode(text_tokenizer.encode_template(text, disguises), False)


def test_messages_that_use_every_noncharacter_are_refused_only_if_one_is_needed(template):
    template.render(Chat([ChatMessage("user", "".join(STAND_INS))]))
    with pytest.raises(ParameterError, match="noncharacters"):
        template.render(Chat([ChatMessage("user", "".join(STAND_INS) + "<|end|>")]))


def test_the_last_message_can_be_continued(template):
    chat = Chat([ChatMessage("user", "hi"), ChatMessage("assistant", "I am ")], continue_final_message=True)
    assert template.render(chat)[0].endswith("<|turn|>assistant\nI am")


def test_a_generation_prompt_can_be_left_out(template):
    assert template.render(Chat([ChatMessage("user", "hi")], add_generation_prompt=False))[0].endswith("hi<|end|>\n")


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        (Chat([]), "chat.messages"),
        (Chat([ChatMessage("", "x")]), r"chat.messages\[0\].role"),
        (Chat([ChatMessage("user", "x")] * 5000), "chat.messages"),
        (Chat([ChatMessage("user", "x")], True, True), "chat.continue_final_message"),
        (Chat([ChatMessage("user", "")], None, True), "chat.continue_final_message"),
    ],
)
def test_bad_chats_are_refused_by_field(template, chat, field):
    with pytest.raises(ParameterError, match=field):
        template.render(chat)


def test_the_usual_extensions_of_templates_work():
    assert render("{{ bos_token }}{{ messages | tojson }}") == '<s>[{"role": "user", "content": "hi"}]'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}") == ""
    assert render("{%- set ns = namespace(n=1) -%}{%- set ns.n = 2 -%}{{ ns.n }}") == "2"


def test_a_template_can_refuse_and_its_reason_is_told():
    with pytest.raises(ParameterError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ undefined_thing.attribute }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_the_sandbox_forbids_costs_only_its_own_request(source):
    with pytest.raises(ParameterError, match="chat"):
        render(source)


def test_a_broken_template_is_refused_at_the_start():
    with pytest.raises(TemplateError):
        ChatTemplate("{% for %}", {}, ())


def test_templates_are_found_in_every_usual_place(tmp_path):
    assert load_template(str(tmp_path), "", ()) is None
    config = '{"chat_template": [{"name": "default", "template": "from list"}]}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    chat = Chat([ChatMessage("user", "x")])
    assert load_template(str(tmp_path), "", ()).render(chat)[0] == "from list"
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert load_template(str(tmp_path), "", ()).render(chat)[0] == "from file"
    (tmp_path / "mine").write_text("from override")
    assert load_template(str(tmp_path), str(tmp_path / "mine"), ()).render(chat)[0] == "from override"
    with pytest.raises(TemplateError, match="chat_template"):
        load_template(str(tmp_path), str(tmp_path / "none"), ())


def test_a_template_that_does_not_compile_is_refused_with_its_file(tmp_path):
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% for x in %}")
    with pytest.raises(TemplateError, match=re.escape(str(bad))):
        load_template(str(tmp_path), str(bad), ())
