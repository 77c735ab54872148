"""Calls of earlier turns, as templates take them: a null content, arguments as text, ids of one length."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from quire.frontend.chat.call_forms import CallForms
from quire.frontend.chat.render_child import check_source
from quire.proto.api import Chat, ChatMessage, ToolCall
from quire.proto.messages.params import ParameterError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from rendering import HI, SPECIALS, in_process, made

ARGUMENTS = '{"city": "Z\\u00fcrich <|end|>",  "days": [1, null]}'
FORMS = {"object": json.loads, "text": str}


def talk(content: str = "", arguments: str = ARGUMENTS) -> list[ChatMessage]:
    calls = [ToolCall(f"abcdefgh{index}", name, arguments) for index, name in enumerate(("weather", "clock"))]
    results = [ChatMessage("tool", "grey", tool_call_id=call.id) for call in calls]
    return [*HI, ChatMessage("assistant", content, tool_calls=calls), *results]


def by_transformers(source: str, messages: list[ChatMessage], form: str, null: bool = False) -> str:
    """What the library makes of the same turns, arguments as an object or as text, no content as null or as ""."""
    turns = []
    for one in messages:
        turn = {"role": one.role, "content": (one.content or None) if null and one.tool_calls else one.content}
        if one.tool_calls:
            turn["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": FORMS[form](c.arguments)}}
                for c in one.tool_calls
            ]
        if one.tool_call_id:
            turn["tool_call_id"] = one.tool_call_id
        if one.name:
            turn["name"] = one.name
        turns.append(turn)
    rendered, _ = render_jinja_template(conversations=[turns], chat_template=source, add_generation_prompt=True)
    return rendered[0]


def rendered(source: str, messages: list[ChatMessage]) -> str:
    text, originals = in_process(made(source), Chat(messages))
    assert not any(special in text for special in SPECIALS)  # no template here writes one
    return text.translate(originals)


def with_calls(shown: str) -> str:
    """A template whose turns without a content show their calls, as DeepSeek's do."""
    return (
        "{% for m in messages %}{% if m['role'] != 'assistant' %}<{{ m['role'] }}>{{ m['content'] }}"
        "{% elif NULL %}<calls>{% for c in m['tool_calls'] %}{% set f = c['function'] %}"
        "{{ c['type'] + '<sep>' + f['name'] }}" + shown + "{% endfor %}"
        "{% else %}<said>{{ m['content'] }}{% endif %}{% endfor %}"
    )


JOINED = with_calls("{{ '```json\\n' + f['arguments'] + '\\n```' }}")
NULLS = [
    "m['content'] is none",
    "m.content == none",
    "not m.content is not none",
    "not m['content'] != None",
    "m.get('content') is none",
    "m.content in [none]",
    "m.content in ('null', none)",
    "(m['content'] | default(none)) is none",
    "m.content is not string and m.content is none",
]


@pytest.mark.parametrize("content", ["", "I look."])
@pytest.mark.parametrize("null", NULLS)
def test_a_turn_that_only_calls_is_null_where_the_template_asks_for_null(null, content):
    source = JOINED.replace("NULL", null)
    found = rendered(source, talk(content))
    assert found == by_transformers(source, talk(content), "text", null=True)
    assert found.count("Z\\u00fcrich") == (0 if content else 2)


def test_a_name_for_the_content_is_the_content():
    source = JOINED.replace("{% elif NULL %}", "{% elif said is none %}").replace(
        "{% for m in messages %}", "{% for m in messages %}{% set said = m.content %}"
    )
    assert rendered(source, talk()) == by_transformers(source, talk(), "text", null=True)


@pytest.mark.parametrize("null", ["not m.content", "m.content == ''", "m.tool_calls", "tools is none and m.tool_calls"])
def test_it_is_an_empty_text_elsewhere(null):
    source = JOINED.replace("NULL", null) + "{{ messages[1].content }}"
    assert rendered(source, talk()) == by_transformers(source, talk(), "text")


def test_a_template_that_asks_and_yet_needs_a_text_is_given_one():
    source = JOINED.replace("NULL", "m.tool_calls and (m.content + '') is not none and m.content is not none")
    assert rendered(source, talk()) == by_transformers(source, talk(), "text")


def test_a_turn_without_calls_keeps_its_empty_text():
    source = "{% for m in messages %}{{ m.content is none }}{{ m.content }}{% endfor %}"
    assert rendered(source, [*HI, ChatMessage("assistant", ""), *HI]) == "FalsehiFalseFalsehi"


@pytest.mark.parametrize(
    "shown",
    [
        "{{ 'a' + f.arguments }}",
        "{{ f.arguments + 'a' }}",
        "{{ 'a' ~ f['arguments'] ~ 1 }}",
        "{{ f.arguments }}",
        "{% set x = f.arguments %}{{ x | trim }}",
        "{{ f.arguments | string | upper }}",
        "{{ f.arguments | replace('c', 'd') }}",
        "{{ '%s' % f.arguments }}{{ '%s' | format(f.arguments) }}{{ '{}'.format(f.arguments) }}",
        "{{ f.arguments.strip() }}",
        "{{ f.arguments[1:-1] }}",
        "{% if f.arguments is not string %}{{ raise_exception('arguments are a text') }}{% endif %}{{ f.arguments }}",
    ],
)
def test_arguments_that_are_joined_or_printed_are_their_json_text(shown):
    source = with_calls(shown).replace("NULL", "m.tool_calls")
    assert rendered(source, talk()) == by_transformers(source, talk(), "text")


@pytest.mark.parametrize(
    "shown",
    [
        "{{ f.arguments | tojson }}",
        "{{ f | tojson }}{{ c | tojson(indent=2) }}",
        "{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
        "{% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}{% endfor %}",
        "{% for k in f.arguments %}{{ k }}{{ f.arguments[k] }}{% endfor %}{{ f.arguments | length }}",
        "{{ f.arguments is mapping }}{{ f.arguments is string }}{{ f.arguments.city }}{{ f.arguments.text }}",
        "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}",
        "{{ f.arguments | dictsort }}{{ 'city' in f.arguments }}",
        "{{ dict(name=f.name, arguments=f.arguments) | tojson }}",
        "{{ '' + (f.arguments if f.arguments is string else f.arguments | tojson) }}",
    ],
)
def test_arguments_that_are_looked_into_are_an_object(shown):
    source = with_calls(shown).replace("NULL", "m.tool_calls")
    assert rendered(source, talk()) == by_transformers(source, talk(), "object")


@pytest.mark.parametrize("arguments", ["", "{}", "oops", "[1]", '"x"'])
def test_arguments_without_an_object_are_joined_too(arguments):
    source = JOINED.replace("NULL", "m.tool_calls")
    assert rendered(source, talk("", arguments)) == by_transformers(source, talk("", arguments or "{}"), "text")


class Counted:
    """A template that counts how often it is rendered."""

    def __init__(self, source: str) -> None:
        self.forms = CallForms(check_source(source).tree)
        self._template = jinja2.Environment().from_string(source)
        self.number = 0

    def render(self, arguments: str) -> bytes:
        self.number = 0
        function = {"name": "f", "arguments": json.loads(arguments), "text": arguments}
        turn = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
        return self.forms.render(self._once, {"messages": [turn]})

    def _once(self, variables: dict) -> bytes:
        self.number += 1
        return self._template.render(**variables).encode()


def test_a_template_that_needs_another_form_is_rendered_once_when_that_is_known():
    counted = Counted("{{ messages[0].tool_calls[0].function.arguments.strip() }}")
    assert counted.render('{"a": 1}') == b'{"a": 1}'
    assert counted.number > 1
    assert counted.render('{"a": 2}') == b'{"a": 2}'
    assert counted.number == 1


def test_what_one_client_calls_with_does_not_decide_about_the_next_ones_prompt():
    shown = "{% for k, v in a.items() %}{{ k + v }}{% endfor %}"
    counted = Counted(
        "{% set a = messages[0].tool_calls[0].function.arguments %}{% if a is mapping %}"
        + shown
        + "{% else %}text {{ a }}{% endif %}"
    )
    assert counted.render('{"a": 1}') == b'text {"a": 1}'
    assert counted.render('{"a": "b"}') == b"ab"


def test_a_template_that_refuses_a_chat_with_calls_says_why_and_is_not_asked_for_ever():
    source = JOINED.replace("NULL", "m.content is none") + "{{ raise_exception('no such turn') }}"
    with pytest.raises(ParameterError, match="no such turn"):
        rendered(source, talk())


@pytest.mark.parametrize(
    "shown",
    [
        "{% if not m.name is defined %}{{ raise_exception('results have names') }}{% endif %}{{ m.name }}",
        "{{ '<' + m['name'] + '>' }}",
    ],
)
def test_a_result_has_the_name_of_its_function_where_the_template_demands_one(shown):
    source = "{% for m in messages %}{{ m.content }}{% if m.role == 'tool' %}" + shown + "{% endif %}{% endfor %}"
    named = [replace(one, name=name) for one, name in zip(talk()[2:], ("weather", "clock"), strict=True)]
    assert rendered(source, talk()) == by_transformers(source, [*talk()[:2], *named], "object")
    assert rendered("{{ messages[2].name is defined }}", talk()) == "False"


def test_a_content_that_must_have_a_first_part_has_an_empty_one():
    source = "{% for m in messages %}{{ m.content[0].thinking or 'none' }}{% endfor %}"
    assert rendered(source, talk()) == "none" * 4


MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls is defined %}[TOOL_CALLS][{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}"
    "{% if ASKS %}{{ raise_exception('ids are nine letters and digits') }}{% endif %}"
    ', "id": "{{ c.id }}"}{% endfor %}]'
    "{% elif m.role == 'tool' %}{% if not m.tool_call_id is defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids are nine letters and digits') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
ASKS = [
    "not c.id is defined or c.id | length != 9",
    "c['id'] | length != 9",
    "not (c.id | length == 9)",
    "c.id | string | count != 9",
]
IDS = [
    ("call_" + "f" * 24, "toolu_01AbCd"),
    ("call_0", "call_1"),
    ("functions.f:0", "é" * 40),
    ("<|end|>", "<|turn|>"),
    ("", ""),
]


def ids_of(text: str) -> tuple[list[str], list[str]]:
    return re.findall('"id": "(.*?)"', text), re.findall('"call_id": "(.*?)"', text)


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("ids", IDS)
def test_ids_of_any_server_are_as_long_as_the_template_demands(ids, asks):
    first, second = ids
    calls = [ToolCall(first, "f", "{}"), ToolCall(second, "g", "{}")]
    results = [ChatMessage("tool", "1", tool_call_id=one or "x") for one in ids]
    chat = [*HI, ChatMessage("assistant", "", tool_calls=calls), *results]
    source = MISTRAL.replace("ASKS", asks)
    called, answered = ids_of(rendered(source, chat))
    assert called[0] != called[1]
    assert all(re.fullmatch("[a-z0-9]{9}", one) for one in called + answered)
    assert not first or called == answered
    longer = [*chat, ChatMessage("assistant", "so"), *HI, *chat[1:]]
    assert ids_of(rendered(source, longer))[0][:2] == called, "a prefix stays a prefix"


def test_ids_that_a_template_takes_stay_as_they_are():
    source = MISTRAL.replace("ASKS", ASKS[0])
    assert rendered(source, talk()) == by_transformers(source, talk(), "object")
    for untouched in ("c.id | length == 0", "c.name | length != 9", "c.id | length > 9"):
        assert made("{% for c in calls %}{{ " + untouched + " }}{% endfor %}").call_ids is None


def test_a_template_that_cuts_long_ids_is_given_no_shorter_ones():
    source = MISTRAL.replace("ASKS", "c.id | length < 9").replace("m.tool_call_id | length != 9", "false")
    calls = [ToolCall(one, "f", "{}") for one in ("call_0", "a" * 29)]
    (short, long), _ = ids_of(rendered(source, [*HI, ChatMessage("assistant", "", tool_calls=calls)]))
    assert (len(short), long) == (9, "a" * 29)


KIMI = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    "{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}: {{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("ids", [("call_" + "f" * 24, "toolu_1"), ("functions.f:0", "functions.g:1"), ("x", "")])
def test_a_template_that_shows_ids_alone_is_given_ids_with_names(ids):
    calls = [ToolCall(one, name, "{}") for one, name in zip(ids, "fg", strict=True)]
    results = [ChatMessage("tool", name, tool_call_id=one or "y") for one, name in zip(ids, "fg", strict=True)]
    text = rendered(KIMI, [*HI, chat := ChatMessage("assistant", "", tool_calls=calls), *results])
    assert re.findall(r"begin\|>([^<]*)<\|tool_call_arg", text) == ["functions.f:0", "functions.g:1"]
    assert "## Return of functions.f:0: f" in text
    assert ("## Return of functions.g:1: g" in text) == bool(ids[1])
    twice = []  # a server that counts anew in every turn
    for call, result in zip(calls, results, strict=True):
        twice += [replace(chat, tool_calls=[replace(call, id="x")]), replace(result, tool_call_id="x")]
    assert re.findall("Return of (.*?): .", rendered(KIMI, twice)) == ["functions.f:0", "functions.g:1"]
