"""Calls of earlier turns at every door: they reach the prompt, and ids that were given are taken back."""

import asyncio
import json
import re

import pytest

from quire.proto.api import Chat, ChatMessage, GenerateRequest, ToolCall

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOL = {"type": "function", "function": LOOK}
STRICT = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    "{{ '[' + c.function.name + c.function.arguments + ']' }}{% endfor %}"
    "{% else %}{{ m.role }}={{ m.content }};{% endif %}{% endfor %}{{ (tools or []) | length }}"
)
"""As DeepSeek's and Mistral's: calls only of a null content, joined arguments, ids of nine letters."""
FUNCTION = {"name": "look", "arguments": '{"a": 1}'}
ID = "call_" + "f" * 24
CALLED = {"role": "assistant", "content": None, "tool_calls": [{"id": ID, "type": "function", "function": FUNCTION}]}
OUTPUT = {"type": "function_call_output", "call_id": ID, "output": "42"}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}}
DOORS = {
    CHAT: {"messages": [USER, CALLED, {"role": "tool", "tool_call_id": ID, "content": "42"}]},
    f"{CHAT} with an empty text": {
        "messages": [USER, CALLED | {"content": ""}, {"role": "tool", "tool_call_id": ID, "content": "42"}]
    },
    f"{CHAT} with functions": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": FUNCTION},
            {"role": "function", "name": "look", "content": "42"},
        ]
    },
    "/v1/responses": {"input": [USER, {"type": "function_call", "call_id": ID, **FUNCTION}, OUTPUT]},
    "/v1/messages": {
        "max_tokens": 3,
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": [USE],
            },
            {"role": "user", "content": [RESULT]},
        ],
    },
    "/api/chat": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"a": 1}}}]},
            {"role": "tool", "content": "42"},
        ]
    },
}


@pytest.fixture
def strict(tmp_path) -> dict[str, str]:
    """The setting of a server with that template."""
    (tmp_path / "strict.jinja").write_text(STRICT)
    return {"chat_template": str(tmp_path / "strict.jinja")}


def shown(w, tokenizer) -> str:
    """The prompt of the last request, without white space."""
    ids = memoryview(w.scheduler.submits[-1].prompt).cast("I").tolist()
    return tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "")


def test_a_call_reaches_the_prompt_from_every_door(web, tokenizer, strict):
    async def main():
        async with web(**strict) as w:
            w.answers([75])
            for door, body in DOORS.items():
                answer = await w.client.post(door.partition(" ")[0], json={"model": "tiny", **body})
                assert answer.status_code == 200, (door, answer.text)
                assert shown(w, tokenizer) == 'user=hello;[look{"a":1}]tool=42;0', door
            turn = ChatMessage("assistant", tool_calls=[ToolCall(ID, "look", '{"a": 1}')])
            chat = Chat([ChatMessage("user", "hello"), turn, ChatMessage("tool", "42", tool_call_id=ID)])
            await w.serving.client.generate(GenerateRequest(input=chat, max_tokens=1))
            assert shown(w, tokenizer) == 'user=hello;[look{"a":1}]tool=42;0'

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["template", "parser"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}, "auto"])
@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_answers_are_taken_back(web, tokenizer, strict, read_items, setting, choice, stream):
    said = {"required": '[{"name": "look", "parameters": {"a": 1}}]', "auto": '[TOOL_CALLS]look{"a": 1}'}

    async def main():
        settings = strict if setting == "template" else {}
        async with web(**settings, tool_call_parser="mistral") as w:
            written = said.get(choice, '{"a": 1}') if isinstance(choice, str) else '{"a": 1}'
            w.answers(tokenizer.encode(written).ids, "stop")
            body = {"messages": [USER], "tools": [TOOL], "tool_choice": choice, "stream": stream}
            answer = await w.client.post(CHAT, json=body)
            if stream:
                deltas = [c["delta"] for item in read_items(answer.text)[:-1] for c in item["choices"]]
                (call,) = [call for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call]
            else:
                (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
            assert re.fullmatch("[A-Za-z0-9]{9}", call["id"])
            call |= {"function": {"name": "look", "arguments": json.dumps({"a": 1})}}
            result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
            turns = [USER, CALLED | {"tool_calls": [call]}, result]
            again = await w.client.post(CHAT, json={"messages": turns})
            assert again.status_code == 200, again.text

    asyncio.run(main())
