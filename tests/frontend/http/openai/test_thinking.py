"""Fields that ask for no reasoning: a template that can be told is told in its own words, others refuse by name."""

import asyncio

import pytest

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "hello"}
NONE = {"reasoning_effort": "none"}
DISABLED = {"thinking": {"type": "disabled"}}
ENABLED = {"thinking": {"type": "enabled"}}
SWITCHES = {
    "enable_thinking": "{{ 'on' if enable_thinking is not defined or enable_thinking else 'off' }}",
    "thinking": "{% if thinking is not defined %}{% set thinking = false %}{% endif %}"
    "{{ 'on' if thinking else 'off' }}",
    "effort": "{% if reasoning_effort | default('none') == 'none' %}off{% else %}{{ 'on' }}{% endif %}",
    "effort or refused": "{% set effort = reasoning_effort | default('high') %}{% if reasoning_effort is defined and "
    "reasoning_effort not in ['none', 'high'] %}{{ raise_exception('no such effort') }}{% endif %}"
    "{{ 'off' if effort == 'none' else 'on' }}",
    "both": "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'high'] %}"
    "{{ raise_exception('no such effort') }}{% endif %}{{ 'on' if enable_thinking else 'off' }}",
}
UNSWITCHED = "{{ messages[0].content }}<think>"
GPT_OSS = "{{ messages[0].content }} effort {{ reasoning_effort }}"


@pytest.fixture
def template(tmp_path):
    """`template(source)`: settings of a server with this chat template, whose model reasons."""

    def write(source: str) -> dict[str, str]:
        (tmp_path / "template.jinja").write_text(source)
        return {"chat_template": str(tmp_path / "template.jinja"), "reasoning_parser": "qwen3"}

    return write


async def prompt(w, tokenizer, path: str, body: dict) -> str:
    w.answers([75])
    answer = await w.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    ids = memoryview(w.scheduler.submits[-1].prompt).cast("I").tolist()
    return tokenizer.decode(ids, skip_special_tokens=False)


ASKED = [
    (CHAT, {"messages": [USER], **NONE}, "off"),
    (CHAT, {"messages": [USER], **DISABLED}, "off"),
    (CHAT, {"messages": [USER], **DISABLED, **NONE}, "off"),
    (CHAT, {"messages": [USER], **ENABLED}, "on"),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}, "off"),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}}, "on"),
    (CHAT, {"messages": [USER], "chat_template_kwargs": {"thinking": False}}, "off"),
    (CHAT, {"messages": [USER], "enable_thinking": False}, "off"),
    (CHAT, {"messages": [USER], "enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True}}, "on"),
    (RESPONSES, {"input": "hello", "reasoning": {"effort": "none"}}, "off"),
    ("/v1/messages", {"model": "tiny", "max_tokens": 3, "messages": [USER], **DISABLED}, "off"),
    ("/v1/messages", {"model": "tiny", "max_tokens": 3, "messages": [USER], **ENABLED}, "on"),
    ("/api/chat", {"model": "tiny", "messages": [USER], "think": False}, "off"),
    ("/api/chat", {"model": "tiny", "messages": [USER], "think": True}, "on"),
]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_template_with_a_switch_is_told_in_its_own_words(web, tokenizer, template, name):
    async def main():
        async with web(**template(SWITCHES[name])) as w:
            for path, body, state in ASKED:
                assert await prompt(w, tokenizer, path, body) == state, (path, body)

    asyncio.run(main())


@pytest.mark.parametrize("source", [UNSWITCHED, GPT_OSS])
def test_a_model_that_cannot_be_told_refuses_or_leaves_its_reasoning_out(web, tokenizer, template, source):
    refused = [
        (CHAT, {"messages": [USER], **NONE}, "reasoning_effort"),
        (CHAT, {"messages": [USER], **DISABLED}, "thinking"),
        (RESPONSES, {"input": "hello", "reasoning": {"effort": "none"}}, "reasoning.effort"),
    ]

    if source == UNSWITCHED:  # which begins to reason for certain
        variables = {"thinking": False}
        refused.append((CHAT, {"messages": [USER], "chat_template_kwargs": variables}, "chat_template_kwargs.thinking"))
        refused.append((CHAT, {"messages": [USER], "enable_thinking": False}, "enable_thinking"))

    async def main():
        async with web(**template(source)) as w:
            for path, body, param in refused:
                answer = await w.client.post(path, json=body)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"], error["code"]) == (400, param, "unsupported"), answer.text
                assert "include_reasoning" in error["message"]
            for path, body, _ in ASKED:
                if path not in (CHAT, RESPONSES) or body.get("thinking") == ENABLED["thinking"]:
                    await prompt(w, tokenizer, path, body)
            w.answers(tokenizer.encode("<think>hm</think>yes").ids, "stop")
            body = {"messages": [USER], **NONE, "include_reasoning": False}
            (choice,) = (await w.client.post(CHAT, json=body)).json()["choices"]
            assert choice["message"] == {"role": "assistant", "content": "yes"}

    asyncio.run(main())


def test_a_model_that_does_not_reason_does_what_is_asked_or_says_so(web, tokenizer):
    async def main():
        async with web() as w:
            for body in (
                {**NONE},
                {**DISABLED},
                {"enable_thinking": False},
                {"chat_template_kwargs": {"enable_thinking": False}},
            ):
                assert "hello" in await prompt(w, tokenizer, CHAT, {"messages": [USER], **body})
            error = (await w.client.post(CHAT, json={"messages": [USER], **ENABLED})).json()["error"]
            assert (error["param"], error["code"]) == ("thinking", "unsupported")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({**ENABLED, **NONE}, "thinking"),
        ({**DISABLED, "reasoning_effort": "high"}, "thinking"),
        ({**ENABLED, "chat_template_kwargs": {"enable_thinking": True, "thinking": False}}, "thinking"),
        ({**DISABLED, "chat_template_kwargs": {"enable_thinking": True}}, "thinking"),
        ({**NONE, "chat_template_kwargs": {"thinking": True}}, "reasoning_effort"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "enable_thinking"),
        ({"enable_thinking": False, **ENABLED}, "thinking"),
        ({"thinking": {"type": "auto"}}, "thinking.type"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(web, template, fields, param):
    async def main():
        async with web(**template(SWITCHES["thinking"])) as w:
            answer = await w.client.post(CHAT, json={"messages": [USER], **fields})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text

    asyncio.run(main())


def test_variables_of_the_template_may_be_lists_and_objects(web, tokenizer, template):
    source = "{% for one in lines %}{{ one.text }};{% endfor %}{{ style.tone | tojson }}"
    given = {"lines": [{"text": "a"}, {"text": "<|end|>"}], "style": {"tone": ["kind", 1, None, True]}}
    bodies = {
        CHAT: {"messages": [USER]},
        RESPONSES: {"input": "hello"},
        "/v1/messages": {"model": "tiny", "max_tokens": 3, "messages": [USER]},
    }

    async def main():
        async with web(**template(source)) as w:
            for path, body in bodies.items():
                said = await prompt(w, tokenizer, path, {**body, "chat_template_kwargs": given})
                assert said == 'a;<|end|>;["kind", 1, null, true]', path
            ends = memoryview(w.scheduler.submits[-1].prompt).cast("I").tolist().count(tokenizer.token_to_id("<|end|>"))
            assert ends == 0, "what a variable spells stays text"
            deep = {"a": "x"}
            for _ in range(70):
                deep = {"a": [deep]}
            for wrong in (deep, {"a": {"b": ["x" * 5000]}}, {"a": {"y" * 5000: 1}}, {"messages": []}):
                answer = await w.client.post(CHAT, json={"messages": [USER], "chat_template_kwargs": wrong})
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")

    asyncio.run(main())
