"""Chat templates: what templates may do, what users may not, and what costs only its own request."""

import asyncio
import errno
import json
import re

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from quire.frontend.chat import render_child
from quire.frontend.chat.checks import RESERVED, check_chat
from quire.frontend.chat.load_template import load_template
from quire.frontend.chat.render_child import TemplateError
from quire.frontend.chat.template import ChatTemplate, RenderedChat
from quire.frontend.sandbox.child_process import ChildProcess
from quire.frontend.text.special_token_escape import (
    ESCAPE_CHARS,
    PIECE,
    EscapeChars,
    SpecialTokenEscaper,
    longest_match_pattern,
    unescaped,
)
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, ChatMessage, RequestError, Tool, ToolCall
from quire.proto.messages.params import ParameterError

SPECIALS = ("<|end|>", "<|turn|>", "<|start|>")
SHREDS = ["<|", "end", "|>", "<", "|", "a", " ", "turn|>", "<|end|>", "é"]
HOSTILE = st.lists(st.sampled_from(SHREDS), max_size=12).map("".join)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER = Tool("weather", "Weather of a city.", '{"type": "object", "properties": {"city": {"type": "string"}}}')
HI = (ChatMessage("user", "hi"),)

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


@pytest.fixture(scope="module")
def text_tokenizer(model_dir):
    return TextTokenizer(str(model_dir))


@pytest.fixture(scope="module")
def template(model_dir):
    return load_template(str(model_dir), "", SPECIALS)


def made(source: str, seconds: float = 5.0) -> ChatTemplate:
    return ChatTemplate({"default": source}, TOKENS, SPECIALS, seconds)


async def rendered(template: ChatTemplate, chat: Chat) -> RenderedChat:
    job = template.job(chat)
    return job.read(await template.render(job))


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


def in_process(template: ChatTemplate, chat: Chat) -> tuple[str, dict]:
    """Without the process around it."""
    job = template.job(chat)
    answer = render_child.prepare(json.dumps(template.sources).encode())(job.payload)
    done = job.read(answer)
    return done.text, dict(done.originals)


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


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=50, deadline=None)
@given(text=HOSTILE)
def test_special_tokens_in_a_text_prompt_are_text(text_tokenizer, text):
    ids = text_tokenizer.encode(text)
    assert not text_tokenizer.special_ids.intersection(ids)
    assert text_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_overlapping_special_tokens_are_all_broken() -> None:
    escaper = SpecialTokenEscaper(("<a<", "<b>", "b>x"))
    escaped = escaper.escape("<a<b>x", EscapeChars(()))
    assert not any(special in escaped for special in ("<a<", "<b>", "b>x"))


RESERVED_TOKENS = [f"<|reserved_special_token_{index}|>" for index in range(254)]


class CountedPattern:
    """A compiled pattern that notes how far each search may look."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.spans: list[int] = []

    def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
        self.spans.append(end - start)
        return self._pattern.search(text, start, end)


@pytest.mark.parametrize("part", ["<|", "<|reserved_special_token_", "plain text ", "|>"])
def test_many_beginnings_of_many_special_tokens_are_looked_for_in_bounded_pieces(part) -> None:
    """A search keeps the interpreter lock, so none may look at the whole of a long text."""
    escaper = SpecialTokenEscaper(RESERVED_TOKENS)
    longest = max(map(len, RESERVED_TOKENS))
    text = part * 100_000
    escaper._pattern = counted = CountedPattern(escaper._pattern)
    assert list(escaper.positions(text)) == []
    assert max(counted.spans) <= PIECE + longest
    assert len(counted.spans) <= len(text) // PIECE + 1


def test_a_place_where_many_special_tokens_might_begin_is_compared_with_their_common_beginning_once() -> None:
    assert longest_match_pattern(RESERVED_TOKENS).count("reserved") == 1
    pattern = re.compile(longest_match_pattern([*RESERVED_TOKENS, "<|", "<", "x"]))
    for text in [*RESERVED_TOKENS, "<|", "<", "x"]:
        assert pattern.fullmatch(text)
    assert pattern.match("<|reserved_special_token_25|>").group() == "<|reserved_special_token_25|>"
    assert pattern.match("<|reserved_special_token_2").group() == "<|"


def test_every_spelled_special_token_of_a_long_text_is_hidden_wherever_pieces_meet() -> None:
    escaper = SpecialTokenEscaper(RESERVED_TOKENS)
    token = RESERVED_TOKENS[17]
    for shift in range(len(token) + 2):
        text = "x" * (PIECE - shift) + token + "y" * PIECE + token * 3000
        escaped = escaper.escape(text, escape_chars := EscapeChars(()))
        assert token not in escaped
        assert unescaped(escaped, escape_chars.originals) == text


def test_noncharacters_in_messages_survive(text_tokenizer, template):
    content = "".join(ESCAPE_CHARS[:-2]) + "<|end|>"
    text, originals = in_process(template, Chat([ChatMessage("user", content)]))
    assert content in text_tokenizer.decode(text_tokenizer.encode_template(text, originals), False)


def test_messages_that_use_every_noncharacter_are_refused_only_if_one_is_needed(template):
    template.job(Chat([ChatMessage("user", "".join(ESCAPE_CHARS))]))
    with pytest.raises(ParameterError, match="noncharacters"):
        template.job(Chat([ChatMessage("user", "".join(ESCAPE_CHARS) + "<|end|>")]))


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
        (Chat(HI, tools=[Tool("a" * 65)]), r"chat.tools\[0\].name"),
        (Chat(HI, tools=[Tool("f"), Tool("f")]), r"chat.tools\[1\].name"),
        (Chat(HI, tools=[Tool(f"f{index}") for index in range(129)]), "chat.tools"),
        (Chat(HI, tools=[Tool("f", parameters="{")]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tools=[Tool("f", parameters="[]")]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tools=[Tool("f", parameters='{"type": "string"}')]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tools=[Tool("f", parameters="[" * 100_000)]), r"chat.tools\[0\].parameters"),
        (Chat(HI, tool_choice="auto"), "chat.tool_choice"),
        (Chat(HI, tools=[WEATHER], tool_choice="any"), "chat.tool_choice"),
        (Chat(HI, tools=[WEATHER], tool_choice="function:clock"), "chat.tool_choice"),
        (Chat(HI, template_kwargs="[]"), "chat.template_kwargs"),
        (Chat(HI, template_kwargs='{"A": 1}'), "chat.template_kwargs"),
        (Chat(HI, template_kwargs='{"a": []}'), "chat.template_kwargs"),
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
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ undefined_thing.attribute }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_the_sandbox_forbids_is_refused(source):
    template = made(source)
    answer = render_child.prepare(f'{{"default": {json.dumps(source)}}}'.encode())(template.job(Chat(HI)).payload)
    assert answer[:1] == render_child.REFUSED


def test_what_never_ends_or_takes_all_memory_costs_only_its_own_request():
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = (
        "{% if messages[0].content == 'time' %}" + endless + "{% elif messages[0].content == 'room' %}"
        "{% set x = 'x' * 99999999999 %}{% endif %}fine"
    )

    async def main():
        template = made(source, seconds=0.5)
        try:
            await template.start()
            wanted = [Chat([ChatMessage("user", text)]) for text in ("time", "hi", "room", "hi", "time", "time", "hi")]
            jobs = [rendered(template, chat) for chat in wanted]
            return await asyncio.gather(*jobs, return_exceptions=True)
        finally:
            await template.close()

    results = asyncio.run(main())
    assert [getattr(one, "text", "") for one in results] == ["", "fine", "", "fine", "", "", "fine"]
    assert all(isinstance(results[index], ParameterError) for index in (0, 2, 4, 5))
    assert "0.5 s" in str(results[0])


def test_a_process_that_is_stopped_or_killed_is_no_fault_of_the_chat():
    async def main():
        template = made("fine", seconds=0.3)
        try:
            for how in (psutil.Process.suspend, psutil.Process.kill):
                await template.start()
                for child in children():
                    child.suspend()
                asked = asyncio.create_task(rendered(template, Chat(HI)))
                for _ in range(20):
                    await asyncio.sleep(0)  # until it has been asked, or another one would be
                for child in children():
                    how(child)
                with pytest.raises(RequestError, match="this request is not at fault, send it again") as caught:
                    await asked
                assert (caught.value.reason, caught.value.field) == ("RECOVERING", "")
        finally:
            await template.close()

    def children():
        return [one for one in psutil.Process().children() if "quire.frontend.chat.render_child" in one.cmdline()]

    asyncio.run(main())


def test_chats_at_once_start_the_other_process_and_do_without_it_where_it_cannot_be(monkeypatch):
    async def main(num_processes: int) -> None:
        template = made("fine")
        await template.start()
        try:
            assert len(children()) == 1
            for _ in range(2):
                told = await asyncio.gather(*(rendered(template, Chat(HI)) for _ in range(8)))
                assert {one.text for one in told} == {"fine"}
            async with asyncio.timeout(20):
                while len(children()) < num_processes:
                    await asyncio.sleep(0.01)
        finally:
            await template.close()

    def children():
        return [one for one in psutil.Process().children() if "quire.frontend.chat.render_child" in one.cmdline()]

    asyncio.run(main(2))
    start, num_started = ChildProcess.start, iter(range(100))

    async def without_memory(*how):
        if next(num_started):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return await start(*how)

    monkeypatch.setattr(ChildProcess, "start", without_memory)
    asyncio.run(main(1))
    assert next(num_started) == 2


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ messages | no_such_filter }}", "{% if x is no_such_test %}{% endif %}"]
)
def test_a_broken_template_is_refused_at_the_start(source):
    with pytest.raises(TemplateError):
        made(source)


def test_templates_are_found_in_every_usual_place(tmp_path):
    def found() -> dict:
        return load_template(str(tmp_path), "", ()).sources

    assert load_template(str(tmp_path), "", ()) is None
    named = (
        '[{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, {"name": "x", "template": "c"}]'
    )
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {named}}}')
    assert found() == {"default": "a", "tool_use": "b"}
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
