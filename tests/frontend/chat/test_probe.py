"""The formats that `auto` finds by what a template makes of chats, in the ways in which published templates differ."""

import asyncio
import json

import pytest
from parts.templates import Unconfined, shown_by

from quire.frontend.chat.probe import Probe
from quire.frontend.chat.template import ChatTemplate
from quire.frontend.parsing.formats import AnswerFormats
from quire.frontend.parsing.reasoning.table import MARKS
from quire.proto.api import Chat, ChatMessage

LOOP = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
END = "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CALLS = "{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}"
OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
HERMES = f"{CALLS}<tool_call>{OBJECT}</tool_call>{{% endfor %}}"
STRIPPING = (
    "{% if not loop.last %}{% set m = {'role': m.role, 'content': m.content.split('</think>')[-1]} %}{% endif %}"
)
KIMI_K3 = (
    "{% macro tag(name, more='') %}{{ '<|open|>' ~ name ~ more ~ '<|sep|>' }}{% endmacro %}"
    "{% macro end(name) %}{{ '<|close|>' ~ name ~ '<|sep|>' }}{% endmacro %}{{ tools }}"
    "{% for m in messages %}{{ tag('message', ' role=\"' ~ m.role ~ '\"') }}{% if m.role == 'assistant' %}"
    "{{ tag('think') ~ m.reasoning_content ~ end('think') ~ tag('response') ~ m.content ~ end('response') }}"
    "{% if m.tool_calls %}{{ tag('tools') }}{% for c in m.tool_calls %}"
    "{{ tag('call', ' tool=\"' ~ c.function.name ~ '\" index=\"1\"') }}{% for k, v in c.function.arguments.items() %}"
    "{{ tag('argument', ' key=\"' ~ k ~ '\" type=\"string\"') ~ v ~ end('argument') }}{% endfor %}{{ end('call') }}"
    "{% endfor %}{{ end('tools') }}{% endif %}{% else %}{{ m.content }}{% endif %}{{ end('message') }}{% endfor %}"
    "{% if add_generation_prompt %}{{ tag('message', ' role=\"assistant\"') }}"
    "{{ tag('response' if thinking is defined and not thinking else 'think') }}{% endif %}"
)
GIGACHAT_3 = (
    "{% set sep = {'role': '<|role_sep|>\\n', 'message': '<|message_sep|>\\n\\n'} %}{{ tools }}"
    "{% for m in messages %}{{ m.role ~ sep.role ~ m.content ~ sep.message }}{% for c in m.tool_calls or [] %}"
    "{% set f = c.function %}{{ 'function call' ~ sep.role }}" + OBJECT + "{{ sep.message }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' ~ sep.role }}{% endif %}"
)
HUNYUAN_3 = (
    "{% set kind = ':opensource' %}{% macro tag(name) %}{{ '<' ~ name ~ kind ~ '>' }}{% endmacro %}{{ tools }}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ tag('tool_calls') }}\n"
    "{{ tag('tool_call') ~ c.function.name ~ tag('tool_sep') }}\n{% for k, v in c.function.arguments.items() %}"
    "{{ tag('arg_key') ~ k ~ tag('/arg_key') }}\n{{ tag('arg_value') ~ v ~ tag('/arg_value') }}\n{% endfor %}"
    "{{ tag('/tool_call') }}\n{{ tag('/tool_calls') }}{% endfor %}{% endfor %}{% if add_generation_prompt %}"
    "<|assistant|>{{ tag('think') }}{% if not thinking %}{{ tag('/think') }}{% endif %}{% endif %}"
)
FUNCTIONARY = (
    LOOP
    + CALLS
    + "{% if f.name == 'python' %}<|python_tag|>{{ f.arguments }}{% else %}"
    + "{{ '<function=' + f.name + '>' + f.arguments + '</function>' }}{% endif %}{% endfor %}"
    + END
)
NINE_LETTERS = "{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
TEMPLATES = {
    "plain": (f"{LOOP}{{{{ m.content }}}}{END}", None, None),
    "strips what earlier turns thought": (f"{LOOP}{STRIPPING}{HERMES}{END}", "hermes", "qwen3"),
    "opens every thought, which no turn shows": (f"{LOOP}{HERMES}{END[:-11]}<think>\n{{% endif %}}", "hermes", "qwen3"),
    "closes thoughts that are switched off": (
        f"{LOOP}{HERMES}{END[:-11]}{{% if enable_thinking is false %}}<think></think>{{% endif %}}{{% endif %}}",
        "hermes",
        "qwen3",
    ),
    "asks for thoughts where they are switched on": (
        "{% if thinking %}In <think></think> tags, then in <response></response>.{% endif %}" + LOOP + HERMES + END,
        "hermes",
        "granite33",
    ),
    "opens every thought of a wrapped answer": (
        "Answer in <response></response>." + LOOP + HERMES + END[:-11] + "<think>{% endif %}",
        "hermes",
        "ernie45",
    ),
    "shows thoughts that no chat of ours has": (
        f"{LOOP}{{% if m.blocks %}}<|inner_prefix|>{{{{ m.blocks }}}}<|inner_suffix|>{{% endif %}}{HERMES}{END}",
        "hermes",
        "apertus",
    ),
    "Kimi K2, which does not think": (
        f"{LOOP}{CALLS}<|tool_calls_section_begin|><|tool_call_begin|>{{{{ c.id }}}}<|tool_call_argument_begin|>"
        f"{{{{ f.arguments | tojson }}}}<|tool_call_end|><|tool_calls_section_end|>{{% endfor %}}{END}",
        "kimi_k2",
        None,
    ),
    "composes tags of attributes": (KIMI_K3, "kimi_k3", "kimi_k3"),
    "composes roles and their ends": (GIGACHAT_3, "gigachat3", None),
    "composes tags with a word in all": (HUNYUAN_3, "hy_v3_opensource", "hy_v3_opensource"),
    "takes arguments as text alone": (
        f"{LOOP}{CALLS}{{{{ '<|tools_prefix|>[{{\"' + f.name + '\": ' + f.arguments + '}}]<|tools_suffix|>' }}}}"
        f"{{% endfor %}}{END}",
        "apertus",
        None,
    ),
    "takes ids of nine letters alone": (
        f"{LOOP}{CALLS}{NINE_LETTERS}[TOOL_CALLS][{OBJECT}]{{% endfor %}}{END}",
        "mistral",
        None,
    ),
    "takes arguments as they are": (
        LOOP
        + CALLS
        + '<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments }}}</tool_call>{% endfor %}'
        + END,
        "hermes",
        None,
    ),
    "has another format's mark for a tool of its own": (FUNCTIONARY, None, None),
    "mentions one format and writes another": (f"Not as <tool_calls>, please.{LOOP}{HERMES}{END}", "hermes", None),
    "writes marks of no known format": (f"{LOOP}{CALLS}<call>{OBJECT}</call>{{% endfor %}}{END}", None, None),
    "tells how to call, and shows no calls": (
        "Write <tool_call>{name: ...}</tool_call>." + LOOP + "{{ m.content }}" + END,
        "hermes",
        None,
    ),
    "refuses every call": (
        f"{LOOP}{CALLS}{{{{ raise_exception('no') }}}}<tool_call>{{% endfor %}}{END}",
        "hermes",
        None,
    ),
    "refuses every chat": ("{{ raise_exception('no') }}<think></think><tool_call>{{ tools }}", "hermes", "qwen3"),
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_formats_are_those_that_a_template_writes(kind):
    source, tools, reasoning = TEMPLATES[kind]
    formats = AnswerFormats.choose("auto", "auto", shown_by(source, ("<think>", "</think>")))
    assert (formats.tools and formats.tools.name, formats.reasoning and formats.reasoning.name) == (tools, reasoning)


def test_no_template_makes_a_whole_answer_reasoning_that_its_prompts_do_not_begin():
    source, *_ = TEMPLATES["strips what earlier turns thought"]
    formats = AnswerFormats.choose("auto", "auto", shown_by(source))
    answer_format = formats.for_chat(Chat([ChatMessage("user", "hi")]), "<|assistant|>", show_reasoning=True)
    for written, thought, text in (("yes", "", "yes"), ("<think>hm</think>yes", "hm", "yes")):
        parser = answer_format.reasoning_parser()
        splits = parser.feed(written), parser.finish()
        assert "".join(split.reasoning for split in splits) == thought
        assert "".join(split.text for split in splits) == text


@pytest.mark.parametrize("setting", ["", "off"])
def test_either_parser_may_be_switched_off(setting):
    shown = shown_by(TEMPLATES["closes thoughts that are switched off"][0])
    formats = AnswerFormats.choose("auto", setting, shown)
    assert (formats.tools.name, formats.reasoning) == ("hermes", None)
    formats = AnswerFormats.choose(setting, "auto", shown)
    assert (formats.tools, formats.reasoning.name) == (None, "qwen3")


def test_a_template_that_hangs_costs_one_chat_and_shows_its_source():
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}<think></think><tool_call>"

    async def main():
        template = ChatTemplate({"default": endless}, {}, (), 0.1)
        await template.start()
        rendered, render = [], template.render

        def counted(job):
            rendered.append(job)
            return render(job)

        template.render = counted
        try:
            shown = await Probe(template).shown(MARKS)
        finally:
            await template.close()
        assert len(rendered) == 1
        formats = AnswerFormats.choose("auto", "auto", shown)
        assert (formats.tools.name, formats.reasoning.name, shown.prompts[0]) == ("hermes", "qwen3", "")

    asyncio.run(main())


def test_what_a_template_makes_of_a_few_words_is_looked_at_up_to_a_length():
    shown = shown_by("{{ '<tool_calls>' * 100000 }}{{ messages[0].content }}")
    assert set(shown.prompts) == {""}
    assert AnswerFormats.choose("auto", "auto", shown).tools.name == "hunyuan_a13b"


def test_the_chats_are_such_as_a_client_might_send():
    asked = []

    class Watched(Unconfined):
        async def render(self, job):
            asked.append(json.loads(job.payload)["variables"])
            return await super().render(job)

    template = Watched({"default": TEMPLATES["plain"][0]}, {}, (), 5.0)
    asyncio.run(Probe(template).shown(MARKS))
    assert {variables.get("enable_thinking") for variables in asked} == {None, True, False}
    assert any(variables["tools"] and variables["add_generation_prompt"] for variables in asked)
