"""Templates and parsers of families together: what a template writes of a turn is read as that turn, at a real door."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from conftest import write_tokenizer
from family_chats import FAMILIES, HERMES_CALL
from parts.templates import shown_by

from quire.frontend.chat.render_child import prepare
from quire.frontend.chat.template import ChatTemplate
from quire.frontend.parsing.formats import AnswerFormats
from quire.frontend.parsing.tools.table import choose as choose_tools
from quire.proto.api import Chat, ChatMessage, ToolCall

USER = {"role": "user", "content": "Is it warm in Zürich?"}
ARGUMENTS = {"city": 'Zürich "Süd"', "days": 3, "tags": ["a", 1, None], "now": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "tags": {"type": "array"},
                "now": {"type": "boolean"},
            },
        },
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps(ARGUMENTS)}}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture
def folder(family, tmp_path):
    """What a frontend reads of such a model."""
    made = tmp_path / "family"
    made.mkdir()
    write_tokenizer(made, family.specials, family.template)
    return made


def test_the_template_shows_its_parsers(family):
    settings = {"tool_call_parser": "auto", "reasoning_parser": "auto"} | family.settings
    shown = shown_by(family.template, family.specials)
    formats = AnswerFormats.choose(settings["tool_call_parser"], settings["reasoning_parser"], shown)
    assert formats.tools == choose_tools(family.tools, "")
    assert (formats.reasoning.name if formats.reasoning else None) == family.reasoning


def test_a_turn_is_read_as_it_is_written_and_written_again_as_it_was_read(family, folder, web, read_items):
    async def main():
        async with web(model=str(folder), length=4096, **family.settings) as w:

            async def ask(*messages, **fields):
                body = {"model": "tiny", "messages": [USER, *messages], "tools": [TOOL], "max_tokens": 9, **fields}
                response = await w.client.post("/v1/chat/completions", json=body)
                assert response.status_code == 200, response.text
                return response

            async def prompt_of(*messages, **fields):
                await ask(*messages, **fields)
                ids = list(memoryview(w.scheduler.submits[-1].prompt).cast("i"))
                return ids, tokenizer.decode(ids, skip_special_tokens=False)

            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            w.answers([75])
            _, asked = await prompt_of()
            turn = {"role": "assistant", "content": family.content, "tool_calls": [CALL]}
            if family.thought:
                turn["reasoning_content"] = family.thought
            if family.has_history:
                _, written = await prompt_of(turn, add_generation_prompt=False)
                assert written.startswith(asked)
                said, _, _ = written[len(asked) :].partition(family.specials[0])
            else:
                call = HERMES_CALL.replace("{{ f.name }}", "look").replace(
                    "{{ f.arguments | tojson }}", json.dumps(ARGUMENTS)
                )
                said = f"<think>\n{family.thought}\n</think>\n\n{family.content}\n{call}"
            w.answers(tokenizer.encode(said, add_special_tokens=False).ids, "stop")
            choice = (await ask()).json()["choices"][0]
            expect(family, choice["message"], choice["finish_reason"])
            *chunks, _ = read_items((await ask(stream=True)).text)
            expect(family, *joined(chunks))
            if family.has_history:
                answer = {name: value for name, value in choice["message"].items() if value is not None}
                result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "warm"}
                _, goes_on = await prompt_of(answer, result)
                assert goes_on.startswith(written)

    asyncio.run(main())


def test_a_text_and_reasoning_before_a_call_are_one_analysis_where_the_template_refuses_both():
    template = ChatTemplate({"default": FAMILIES["gpt-oss"].template}, {}, (), 5.0)
    turn = ChatMessage("assistant", "I ask.", reasoning="Let me see.", tool_calls=[ToolCall("c1", "look", "{}")])
    assert "<|message|>Let me see.\n\nI ask.<|end|><|start|>assistant to=functions.look" in rendered(template, turn)


def test_a_text_and_reasoning_before_a_call_are_both_handed_to_templates_that_show_both():
    shown = "{% for m in messages %}{{ m.thinking }}|{{ m.content }}|{{ m.tool_calls }}{% endfor %}"
    turn = ChatMessage("assistant", "I ask.", reasoning="Let me see.", tool_calls=[ToolCall("c1", "look", "{}")])
    assert "Let me see.|I ask.|[" in rendered(ChatTemplate({"default": shown}, {}, (), 5.0), turn)


def rendered(template, turn):
    job = template.job(Chat([ChatMessage("user", "hi"), turn]))
    return job.read(prepare(json.dumps(template.sources).encode())(job.payload)).text


def expect(family, message, reason):
    assert reason == "tool_calls"
    assert (message.get("content") or "").strip() == family.content
    assert (message.get("reasoning_content") or "").strip() == family.thought
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS


def joined(chunks):
    """The message that the chunks of a stream make together, and how it ended."""
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    message = {name: "".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning_content")}
    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    arguments = "".join(part.get("arguments", "") for part in parts)
    name = "".join(part.get("name", "") for part in parts)
    return message | {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}, choices[-1][
        "finish_reason"
    ]
