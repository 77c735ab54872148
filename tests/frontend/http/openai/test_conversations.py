"""What a chat may hold: roles and documents are the template's business, tools need eyes, old functions are tools."""

import asyncio
import json

import pytest

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOL = {"type": "function", "function": LOOK}
SAID = '<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
PLAIN = "{% for m in messages %}{{ m.role }}={{ m.content }}{% endfor %}"
STRICT = "{% for m in messages %}{% if m.role == 'judge' %}{{ raise_exception('no judges') }}{% endif %}{% endfor %}"
CALLS = (
    "{% for m in messages %}{{ m.role }}={{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %};{% endfor %}{{ (tools or []) | length }}"
)


@pytest.fixture
def template(tmp_path):
    """`template(source)`: the setting of a server with this chat template."""

    def write(source: str) -> dict[str, str]:
        (tmp_path / "template.jinja").write_text(source)
        return {"chat_template": str(tmp_path / "template.jinja")}

    return write


async def prompt(w, tokenizer, *messages, **fields) -> str:
    """The prompt that a chat becomes, as a text."""
    w.answers([75])
    answer = await w.client.post(PATH, json={"messages": list(messages), **fields})
    assert answer.status_code == 200, answer.text
    ids = memoryview(w.scheduler.submits[-1].prompt).cast("I").tolist()
    return tokenizer.decode(ids, skip_special_tokens=False)


async def refusal(w, path: str, body: dict) -> dict:
    answer = await w.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_roles_go_to_the_template_and_only_it_refuses_them(web, tokenizer, template):
    async def main():
        async with web(**template(PLAIN)) as w:
            turns = [{"role": role, "content": "x"} for role in ("function", "ipython", "judge", "developer", "user")]
            assert await prompt(w, tokenizer, *turns) == "function=xipython=xjudge=xsystem=xuser=x"
        async with web(**template(PLAIN + "{# developer #}")) as w:
            assert await prompt(w, tokenizer, {"role": "developer", "content": "x"}) == "developer=x"
        async with web(**template(STRICT)) as w:
            error = await refusal(w, PATH, {"messages": [{"role": "judge", "content": "x"}]})
            assert (error["param"], "no judges" in error["message"]) == ("messages", True)

    asyncio.run(main())


@pytest.mark.parametrize(
    "turn", [{"content": None}, {"content": ""}, {}, {"reasoning_content": "hm"}, {"content": None, "reasoning": "hm"}]
)
def test_an_assistants_turn_may_be_empty_or_nothing_but_reasoning(web, tokenizer, template, turn):
    async def main():
        async with web(**template(PLAIN)) as w:
            said = await prompt(w, tokenizer, USER, {"role": "assistant", **turn}, USER)
            assert said == "user=helloassistant=user=hello"

    asyncio.run(main())


@pytest.mark.parametrize(
    "turn", [{"content": None, "refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}]
)
def test_what_another_server_refused_is_a_turn_of_the_conversation(web, tokenizer, template, turn):
    async def main():
        async with web(**template(PLAIN)) as w:
            said = await prompt(w, tokenizer, USER, {"role": "assistant", **turn}, USER)
            assert said == "user=helloassistant=nouser=hello"
            error = await refusal(w, PATH, {"messages": [{**USER, "refusal": "no"}]})
            assert error["param"] == "messages[0].refusal"

    asyncio.run(main())


def test_tools_that_no_template_shows_and_no_parser_finds_are_refused_at_every_door(web, tokenizer, template):
    async def main():
        named = {"name": "look", "input_schema": LOOK["parameters"]}
        doors = {
            PATH: {"messages": [USER], "tools": [TOOL]},
            "/tokenize": {"messages": [USER], "tools": [TOOL]},
            "/v1/responses": {"input": "hello", "tools": [{"type": "function", **LOOK}]},
            "/v1/messages": {"model": "tiny", "max_tokens": 3, "messages": [USER], "tools": [named]},
        }
        async with web(**template(PLAIN)) as w:
            for path, body in doors.items():
                error = await refusal(w, path, body)
                assert (
                    "tools: are not shown by this model's chat template" in error["message"]
                    or error["param"] == "tools"
                )
                assert "--chat-template" in error["message"]
            for fields in (
                {"tools": []},
                {"tools": [], "tool_choice": "auto"},
                {"tools": [TOOL], "tool_choice": "none"},
            ):
                assert await prompt(w, tokenizer, USER, **fields) == "user=hello"
            assert await prompt(w, tokenizer, USER, tools=[TOOL], tool_choice="required") == "user=hello"
            forced = {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
            }
            result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
            assert await prompt(w, tokenizer, forced, result, tools=[TOOL]) == "assistant=tool=42"
        async with web(**template(PLAIN), tool_call_parser="hermes") as w:
            assert await prompt(w, tokenizer, USER, tools=[TOOL]) == "user=hello"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "parser", "told"),
    [
        (CALLS, "auto", "the format of its calls is not known"),
        (CALLS + "<|tool_call_start|>", "auto", "'lfm2' does not read"),
        (CALLS, "hermes", "'hermes' does not read"),
    ],
)
def test_a_template_that_shows_tools_in_an_unknown_format_is_named_at_start_and_with_the_model(
    web, template, caplog, source, parser, told
):
    async def main():
        async with web(**template(source), tool_call_parser=parser) as w:
            (warning,) = (await w.client.get("/v1/models/tiny")).json()["warnings"]
            assert "--tool-call-parser" in warning
            assert told in warning
            assert any(warning in record.getMessage() for record in caplog.records)
        off = {**template(source), "tool_call_parser": "off"}
        for settings in ({"tool_call_parser": "hermes"}, off, None):
            async with web(**(settings or template(PLAIN))) as w:
                assert (await w.client.get("/v1/models")).json()["data"][0]["warnings"] == []

    asyncio.run(main())


THINKS = "In <think></think> tags, if at all." + CALLS
OPENS = CALLS + "{% if add_generation_prompt and enable_thinking is not false %}<think>\n{% endif %}"
SHAPED = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": LOOK["parameters"]}}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
]


@pytest.mark.parametrize(
    ("source", "parser", "fields", "after", "thoughts"),
    [
        (THINKS, "auto", {}, "", (("<think>", "</think>"),)),
        (THINKS, "auto", {"chat_template_kwargs": {"enable_thinking": False}}, "", (("<think>", "</think>"),)),
        (THINKS, "kimi_k2", {}, "", (("<think>", "</think>"),)),
        (THINKS, "deepseek_r1", {}, "</think>", (("<think>", "</think>"),)),
        (THINKS, "off", {}, "", ()),
        (OPENS, "auto", {}, "</think>", (("<think>", "</think>"),)),
        (OPENS, "auto", {"chat_template_kwargs": {"enable_thinking": False}}, "", (("<think>", "</think>"),)),
        (OPENS, "off", {}, "", ()),
        (CALLS, "auto", {}, "", ()),
    ],
)
def test_structure_waits_for_no_thought_but_one_that_the_prompt_has_begun(
    web, template, source, parser, fields, after, thoughts
):
    async def main():
        async with web(**template(source), reasoning_parser=parser) as w:
            w.answers([75], "stop")
            for shape in SHAPED:
                answer = await w.client.post(PATH, json={"messages": [USER], **fields, **shape})
                assert answer.status_code == 200, answer.text
                told = w.scheduler.submits[-1].params.structured
                assert (told.after, told.thoughts) == (after, thoughts)

    asyncio.run(main())


def test_documents_go_to_a_template_that_shows_them(web, tokenizer, template):
    async def main():
        source = PLAIN + "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}"
        async with web(**template(source)) as w:
            found = [{"title": "a", "text": "<|end|>"}, {"title": "b", "text": "y"}]
            assert await prompt(w, tokenizer, USER, documents=found) == "user=hello[a: <|end|>][b: y]"
            ends = memoryview(w.scheduler.submits[-1].prompt).cast("I").tolist().count(tokenizer.token_to_id("<|end|>"))
            assert ends == 0, "what a document spells stays text"
            assert await prompt(w, tokenizer, USER, documents=None) == "user=hello"

    asyncio.run(main())


def test_functions_are_tools_and_answered_as_functions(web, tokenizer, read_items, template):
    async def main():
        body = {"messages": [USER], "functions": [LOOK], "function_call": "auto"}
        async with web(**template(CALLS), tool_call_parser="hermes") as w:
            w.answers(tokenizer.encode(SAID).ids, "stop")
            (choice,) = (await w.client.post(PATH, json=body)).json()["choices"]
            called = {"name": "look", "arguments": '{"a": 1}'}
            assert choice["message"] == {"role": "assistant", "content": None, "function_call": called}
            assert choice["finish_reason"] == "function_call"
            *chunks, _ = read_items((await w.client.post(PATH, json={**body, "stream": True})).text)
            grown = [c["delta"]["function_call"] for chunk in chunks for c in chunk["choices"] if len(c["delta"]) == 1]
            assert "".join(one.get("name", "") for one in grown) == "look"
            assert json.loads("".join(one["arguments"] for one in grown)) == {"a": 1}
            history = [USER, choice["message"], {"role": "function", "name": "look", "content": "42"}]
            said = await prompt(w, tokenizer, *history, functions=[LOOK])
            assert said == 'user=hello;assistant=[look {"a": 1}];tool=42;1'

    asyncio.run(main())


def test_a_schema_beside_json_object_is_the_schema(web):
    async def main():
        async with web() as w:
            w.answers([75])
            for kind in ("json_object", "json_schema"):
                form = {"type": kind, "schema": LOOK["parameters"]}
                answer = await w.client.post(PATH, json={"messages": [USER], "response_format": form})
                assert answer.status_code == 200, answer.text
                structured = w.scheduler.submits[-1].params.structured
                assert (structured.kind, json.loads(structured.text)) == ("json_schema", LOOK["parameters"])

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"functions": [LOOK]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]},
        {"messages": [USER, {"role": "assistant", "content": "the"}], "continue_final_message": True},
        {"chat_template_kwargs": {"a": "b"}, "reasoning_effort": "low", "add_generation_prompt": False},
        {"temperature": 0.5, "max_completion_tokens": 3, "response_format": {"type": "json_object"}, "stream": False},
    ],
)
def test_tokenize_takes_any_chat_that_the_chat_route_takes(web, template, fields):
    async def main():
        async with web(**template(CALLS + "{{ a }}{{ reasoning_effort }}{{ add_generation_prompt }}")) as w:
            body = {"messages": [USER], **fields}
            w.answers([75])
            answer = await w.client.post(PATH, json=body)
            told = await w.client.post("/tokenize", json=body)
            assert (answer.status_code, told.status_code) == (200, 200), (answer.text, told.text)
            assert told.json()["tokens"] == memoryview(w.scheduler.submits[-1].prompt).cast("I").tolist()

    asyncio.run(main())


LISTEN = {"type": "function", "function": {"name": "listen"}}


def allowed(mode: str, *names: str) -> dict:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}}


@pytest.mark.parametrize("stream", [False, True])
def test_allowed_tools_are_all_that_the_model_sees_and_may_be_forced_to(web, tokenizer, template, stream):
    async def main():
        async with web(**template(CALLS), tool_call_parser="hermes") as w:
            fields = {"tools": [LISTEN, TOOL], "stream": stream}
            assert (await prompt(w, tokenizer, USER, **fields)).endswith("2")
            assert (await prompt(w, tokenizer, USER, **fields, **allowed("auto", "look"))).endswith("1")
            assert w.scheduler.submits[-1].params.structured is None
            assert (await prompt(w, tokenizer, USER, **fields, **allowed("required", "look"))).endswith("1")
            forced = w.scheduler.submits[-1].params.structured
            assert "look" in forced.text
            assert "listen" not in forced.text
            old = {"functions": [LISTEN["function"], LOOK], "stream": stream}
            assert (await prompt(w, tokenizer, USER, **old, **allowed("auto", "look", "listen"))).endswith("2")

    asyncio.run(main())


BAD_TOOL = {"type": "function", "function": {"name": "listen", "parameters": {"type": "array"}}}
NAMELESS = {"tool_choice": {"type": "function"}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        (allowed("auto", "look", "taste"), "tool_choice.allowed_tools.tools[1].function.name", "'taste' is not among"),
        (allowed("required"), "tool_choice", "needs tools"),
        (allowed("sometimes", "look"), "tool_choice.allowed_tools.mode", "invalid enum value"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools", "must be there"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice.type", "or 'allowed_tools'"),
        (NAMELESS, "tool_choice.function", "must be there"),
        ({**allowed("auto", "listen"), "tools": [TOOL, BAD_TOOL]}, "tools[1].function.parameters", "JSON Schema"),
    ],
)
def test_a_choice_that_means_nothing_here_is_refused_with_its_place(web, fields, param, said):
    async def main():
        async with web() as w:
            error = await refusal(w, PATH, {"messages": [USER], "tools": [TOOL], **fields})
            assert error["param"] == param
            assert said in error["message"]

    asyncio.run(main())
