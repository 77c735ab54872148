"""Tiny checkpoints of families say a turn as their templates write it, held by a grammar; parsers read it back."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2] / "frontend/http/openai"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import expert_models
from core_engine import Engine
from dense_models import MODELS as DENSE_MODELS
from family_chats import FAMILIES
from parts.templates import shown_by
from tiny_tokenizer import write_tokenizer

from quire.frontend.chat.render_child import prepare
from quire.frontend.chat.template import ChatTemplate
from quire.frontend.parsing.formats import AnswerFormats
from quire.proto.api import Chat, ChatMessage, Tool, ToolCall
from quire.proto.messages.structured import Structured

pytestmark = pytest.mark.integration

ARGUMENTS = {"city": "Zürich", "days": 3}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = Tool("look", "", json.dumps(SCHEMA))
USER = ChatMessage("user", "hi")
CONFIGS = dict((*DENSE_MODELS.values(), *expert_models.MODELS.values()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.has_history])
def test_what_a_tiny_checkpoint_is_held_to_is_read_back(name, tiny_checkpoint, tmp_path):
    family, folder = FAMILIES[name], tmp_path / "model"
    sizes = {"vocab_size": 400, "max_position_embeddings": 2048}
    shutil.copytree(tiny_checkpoint(family.architecture, **CONFIGS[family.architecture] | sizes), folder)
    # no mark but the end of a turn is a special token, which no grammar lets a model say
    write_tokenizer(folder, family.specials[:1], family.template, ["look", "parameter", "arguments"], 400)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = ChatTemplate({"default": family.template}, {}, family.specials, 5.0)
    call = ToolCall("c1", "look", json.dumps(ARGUMENTS))
    turn = ChatMessage("assistant", family.content, reasoning=family.thought, tool_calls=[call])
    asked, answered = (rendered(template, messages) for messages in ([USER], [USER, turn]))
    said, _, _ = answered.removeprefix(asked).partition(family.specials[0])
    engine = Engine(folder, enforce_eager=True, max_model_len=2048, kv_cache_memory_bytes=8 << 20)
    held = Structured("choice", json.dumps([said]))
    engine.submit(1, tokenizer.encode(asked).ids, max_tokens=600, ignore_eos=False, structured=held)
    text = tokenizer.decode(engine.settle()[1, 0], skip_special_tokens=False).removesuffix(family.specials[0])
    assert text == said
    shown = shown_by(family.template, family.specials)
    formats = AnswerFormats.choose("auto", family.settings.get("reasoning_parser", "auto"), shown)
    answer = formats.for_chat(Chat([USER], tools=[TOOL]), asked[-64:], show_reasoning=True)
    assert read(answer, text) == (family.thought, family.content, ARGUMENTS)


def rendered(template, messages):
    job = template.job(Chat(messages, tools=[TOOL], add_generation_prompt=len(messages) == 1))
    return job.read(prepare(json.dumps(template.sources).encode())(job.payload)).text


def read(answer, text):
    """Reasoning, text and the arguments of the one call, as the parsers of an answer find them."""
    reasoning = ""
    if (thinker := answer.reasoning_parser()) is not None:
        pieces = [thinker.feed(text), thinker.finish()]
        reasoning, text = ("".join(getattr(one, part) for one in pieces) for part in ("reasoning", "text"))
    parser = answer.tool_parser(whole=True)
    found = [parser.feed(text), parser.finish()]
    reasoning += "".join(one.reasoning for one in found)
    calls = [delta for one in found for delta in one.calls]
    assert {delta.name for delta in calls} - {""} == {"look"}
    arguments = json.loads("".join(delta.arguments for delta in calls))
    return reasoning.strip(), "".join(one.text for one in found).strip(), arguments
