"""Chat templates: what templates may do, what users may not, and what costs only its own request."""

import asyncio
import json
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from quire.frontend.chat.checks import RESERVED, check_chat
from quire.frontend.chat.load_template import load_template
from quire.frontend.chat.render_child import TemplateError, check_source
from quire.frontend.chat.template import ChatTemplate, RenderedChat
from quire.proto.api import Chat, ChatMessage, TextPart, Tool, ToolCall
from quire.proto.messages.params import ParameterError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from rendering import HI, TOKENS, in_process, made, rendered

WEATHER = Tool("weather", "Weather of a city.", '{"type": "object", "properties": {"city": {"type": "string"}}}')

CHATML = (
    "{%- if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "# Tools\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}<|im_start|>assistant\n"
    "{% if m.reasoning_content is defined %}<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n{% endif %}"
    "{{ m.content or '' }}{% for call in m.tool_calls %}{% set f = call.function %}<tool_call>\n"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% elif m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = '26 Jul' %}{% endif %}"
    "{% if tools is not none %}Date: {{ date_string }}{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}"
    "{% endif %}{% for m in messages %}{% if 'tool_calls' in m %}{% set call = m.tool_calls[0].function %}"
    '<|python_tag|>{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>'
    "{% else %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{- bos_token }}{% if tools is not none %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.tool_calls is defined and m.tool_calls is not none %}[TOOL_CALLS][{% for call in m.tool_calls %}"
    '{% set out = call.function | tojson %}{{ out[:-1] }}, "id": "{{ call.id }}"}{{ \', \' if not loop.last }}'
    "{% endfor %}]{{ eos_token }}{% elif m.role == 'tool' %}[TOOL_RESULTS]{\"content\": {{ m.content | tojson }}, "
    '"call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]{% elif m.role == \'assistant\' %}'
    "{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
TALK = (
    ChatMessage("user", "Weather in Zürich?"),
    ChatMessage(
        "assistant", "", reasoning="\nhm\n", tool_calls=[ToolCall("abcdef123", "weather", '{"city": "Z\\u00fcrich"}')]
    ),
    ChatMessage("tool", '{"sky": "grey"}', name="weather", tool_call_id="abcdef123"),
    ChatMessage("assistant", "It is grey."),
)


def render_all(template: ChatTemplate, *chats: Chat) -> list[RenderedChat]:
    """In the template's own processes."""

    async def main():
        try:
            return [await rendered(template, chat) for chat in chats]
        finally:
            await template.close()

    return asyncio.run(main())


def render(source: str, *messages: ChatMessage, **flags) -> str:
    return render_all(made(source), Chat(messages or HI, **flags))[0].text


def as_transformers(chat: Chat) -> dict:
    """The same chat as a user of transformers writes it."""
    messages = []
    for one in chat.messages:
        message = {"role": one.role, "content": one.content}
        if one.name:
            message["name"] = one.name
        if one.reasoning:
            message["reasoning_content"] = one.reasoning
        if one.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in one.tool_calls
            ]
        if one.tool_call_id:
            message["tool_call_id"] = one.tool_call_id
        messages.append(message)
    tools = [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": json.loads(t.parameters)},
        }
        for t in chat.tools
    ]
    continues = bool(chat.continue_final_message)
    opens = not continues if chat.add_generation_prompt is None else chat.add_generation_prompt
    return {
        "conversations": [messages],
        "tools": tools or None,
        "add_generation_prompt": opens,
        "continue_final_message": continues,
        **(json.loads(chat.template_kwargs) if chat.template_kwargs else {}),
    }


@pytest.mark.parametrize("source", [CHATML, LLAMA, MISTRAL], ids=["chatml", "llama", "mistral"])
@pytest.mark.parametrize(
    "chat",
    [
        Chat(HI),
        Chat([ChatMessage("system", "be kind"), *HI]),
        Chat(TALK, tools=[WEATHER]),
        Chat(TALK, tools=[WEATHER], add_generation_prompt=False),
        Chat([*HI, ChatMessage("assistant", "I am ")], continue_final_message=True),
        Chat([*HI, ChatMessage("assistant", "hi")], continue_final_message=True),
        Chat(HI, template_kwargs='{"enable_thinking": false, "date_string": "1 May"}', tools=[WEATHER]),
    ],
    ids=["plain", "system", "tools", "closed", "continued", "repeated", "kwargs"],
)
def test_prompts_equal_those_of_transformers(source, chat):
    expected, _ = render_jinja_template(chat_template=source, **TOKENS, **as_transformers(chat))
    text, originals = in_process(made(source), chat)
    assert text.translate(originals) == expected[0]


def test_template_tokens_parse_and_the_same_ids_as_the_library_result(template, text_tokenizer, tokenizer):
    (done,) = render_all(template, Chat([ChatMessage("system", "be kind"), ChatMessage("user", "the quick fox 🙂")]))
    assert done.text.startswith("<|turn|>system\nbe kind<|end|>\n<|turn|>user\nthe quick")
    ids = text_tokenizer.encode_template(done.text, done.originals)
    assert ids == tokenizer.encode(done.text, add_special_tokens=False).ids


def test_tools_are_shown_unless_none_may_be_called_and_may_have_a_template_of_their_own():
    template = ChatTemplate({"default": "plain {{ tools }}", "tool_use": "{{ tools[0].function.name }}"}, {}, (), 5.0)
    chats = [Chat(HI), Chat(HI, tools=[WEATHER]), Chat(HI, tools=[WEATHER], tool_choice="none")]
    assert [done.text for done in render_all(template, *chats)] == ["plain None", "weather", "plain None"]


def test_arguments_that_are_no_json_object_reach_the_template_as_they_are():
    messages = [ChatMessage("assistant", "", tool_calls=[ToolCall("1", "f", text)]) for text in ("oops", "[1]", "")]
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments }};{% endfor %}"
    assert render(source, *messages) == "oops;[1];{};"


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        (Chat([]), "chat.messages"),
        (Chat([ChatMessage("", "x")]), r"chat.messages\[0\].role"),
        (Chat([ChatMessage("user", "x")] * 5000), "chat.messages"),
        (Chat(HI, True, True), "chat.continue_final_message"),
        (Chat([ChatMessage("user", "")], None, True), "chat.continue_final_message"),
        (Chat([ChatMessage("user", "x", tool_calls=[ToolCall("1", "f", "{}")])]), r"chat.messages\[0\].tool_calls"),
        (Chat(HI, tools=[Tool("")]), r"chat.tools\[0\].name"),
        (Chat(HI, tools=[Tool("a b")]), r"chat.tools\[0\].name"),
        (Chat(HI, tools=[Tool("a" * 129)]), r"chat.tools\[0\].name"),
        (Chat(HI, tools=[Tool("f"), Tool("f")]), r"chat.tools\[1\].name"),
        (Chat(HI, tools=[Tool(f"f{index}") for index in range(129)]), "chat.tools"),
        (Chat(HI, tools=[Tool("f", parameters="{")]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tools=[Tool("f", parameters="[]")]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tools=[Tool("f", parameters='{"type": "string"}')]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tools=[Tool("f", parameters="[" * 100_000)]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tool_choice="required"), "chat.tool_choice"),
        (Chat(HI, documents='{"text": "x"}'), "chat.documents"),
        (Chat(HI, tools=[WEATHER], tool_choice="any"), "chat.tool_choice"),
        (Chat(HI, tools=[WEATHER], tool_choice="function:clock"), "chat.tool_choice"),
        (Chat(HI, template_kwargs="[]"), "chat.template_kwargs"),
        (Chat(HI, template_kwargs='{"A": 1}'), "chat.template_kwargs"),
        (Chat(HI, template_kwargs=json.dumps({"a": [{"b": "x" * 5000}]})), "chat.template_kwargs"),
        (Chat(HI, template_kwargs=str({f"a{i}": 1 for i in range(33)}).replace("'", '"')), "chat.template_kwargs"),
    ],
)
def test_bad_chats_are_refused_by_field(chat, field):
    with pytest.raises(ParameterError, match=f"^{field}: "):
        check_chat(chat)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_template_kwargs_cannot_take_the_place_of_what_the_server_sets(name):
    with pytest.raises(ParameterError, match=f"^chat.template_kwargs: .*{name}"):
        check_chat(Chat(HI, template_kwargs=f'{{"{name}": "x"}}'))


def test_the_usual_extensions_of_templates_work():
    source = (
        "{{ bos_token }}{{ messages | tojson }}{{ strftime_now('%Y') | length }}"
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}"
        "{%- set ns = namespace(n=1) -%}{%- set ns.n = 2 -%}{{ ns.n }}{{ pad_token }}"
    )
    assert render(source) == '<s>[{"role": "user", "content": "hi"}]42'


def test_a_template_can_refuse_and_its_reason_is_told():
    with pytest.raises(ParameterError, match=re.escape("no role <|end|>")):
        render("{{ raise_exception('no role ' + messages[0].role) }}", ChatMessage("<|end|>", "x"))


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ messages | no_such_filter }}", "{% if x is no_such_test %}{% endif %}"]
)
def test_a_broken_template_is_refused_at_the_start(source):
    with pytest.raises(TemplateError):
        made(source)


@pytest.mark.parametrize(
    "source", ["{{ 'x' * 20000000 }}", "{% autoescape 'x' | center(20000000) %}{% endautoescape %}"]
)
def test_constants_of_a_template_are_not_computed_outside_of_its_process(source):
    tracemalloc.start()
    try:
        made(source + "{{ a + 1 if b else range(c) }}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    assert check_source(source + "{{ a + 1 if b else range(c) }}").variables == {"a", "b", "c"}


def test_templates_are_found_in_every_usual_place(tmp_path):
    def found() -> dict:
        return load_template(str(tmp_path), "", ()).sources

    assert load_template(str(tmp_path), "", ()) is None
    named = (
        '[{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, {"name": "x", "template": "c"}]'
    )
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {named}}}')
    assert found() == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of the processor"}')
    assert found() == {"default": "of the processor"}
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert found() == {"default": "from file"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert found() == {"default": "from file", "tool_use": "with tools"}
    (tmp_path / "mine").write_text("from override")
    assert load_template(str(tmp_path), str(tmp_path / "mine"), ()).sources == {"default": "from override"}
    with pytest.raises(TemplateError, match="chat_template"):
        load_template(str(tmp_path), str(tmp_path / "none"), ())


def test_a_template_that_does_not_parse_is_refused_with_its_file(tmp_path):
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% for x in %}")
    with pytest.raises(TemplateError, match=re.escape(str(bad))):
        load_template(str(tmp_path), str(bad), ())


def test_parts_are_rendered_as_one_text_and_no_special_token_is_made_of_two():
    parts = (TextPart("a <|e"), TextPart("nd|> b"))
    chats = [
        Chat([*HI, ChatMessage("assistant", content)], continue_final_message=True)
        for content in (parts, "a <|end|> b")
    ]
    first, second = (in_process(made(CHATML), chat) for chat in chats)
    assert first == second
    assert "<|end|>" not in first[0]


PARTS = (
    "{% for m in messages %}<|turn|>{{ m['role'] }} "
    "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}"
    "<image>{% endfor %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{% generation %}"
    "{{ '\n' + c['text'] }}{% endgeneration %}{% endfor %}<|end|>{% endfor %}"
)
"""As LLaVA's, which know contents of parts alone."""


def test_a_template_that_goes_through_parts_is_given_texts_as_parts():
    talk = (
        ChatMessage("user", "hi"),
        ChatMessage("assistant", ""),
        ChatMessage("user", [TextPart("a"), TextPart("b")]),
    )
    assert render(PARTS, *talk) == "<|turn|>user \nhi<|end|><|turn|>assistant <|end|><|turn|>user \nab<|end|>"


@pytest.mark.parametrize(
    ("loop", "shown"),
    [
        ("{% for c in m.content %}{{ c.text }}{% endfor %}", "hi"),
        ("{% for c in m.content | reverse %}{{ c.text }}{% endfor %}", "hi"),
        ("{% set content = m.content %}{% for c in content %}{{ c.text }}{% endfor %}", "hi"),
        (
            "{% if m.content is string %}[{{ m.content }}]{% else %}{% for c in m.content %}-{% endfor %}{% endif %}",
            "[hi]",
        ),
        ("{{ m.content }}", "hi"),
    ],
)
def test_one_that_asks_for_texts_is_given_texts(loop, shown):
    assert render("{% for m in messages %}" + loop + "{% endfor %}") == shown


@pytest.mark.parametrize("stated", [["text"], [{"name": "default", "template": ["text"]}], [None], {"default": "x"}, 7])
def test_a_template_that_is_no_text_is_refused_in_a_sentence(tmp_path, stated):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": stated}))
    with pytest.raises(TemplateError, match="chat_template: must be a text, or a list"):
        load_template(str(tmp_path), "", ())
    (tmp_path / "chat_template.jinja").write_text("another")
    assert load_template(str(tmp_path), "", ()).sources == {"default": "another"}
