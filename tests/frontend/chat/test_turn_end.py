"""The tokens that a template writes behind an answer, against the ends of the model: a model that has none of them is
said at the start."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[1] / "http/openai")
)  # collected in importlib mode, yet they share modules

from family_chats import FAMILIES
from rendering import TOKENS
from tiny_tokenizer import write_tokenizer

from quire.frontend.chat.template import ChatTemplate
from quire.frontend.chat.turn_end import behind_answer
from quire.frontend.text.tokenizer import TextTokenizer

TURN = "<|turn|>{{ m.role }}\n{{ m.content }}"
LOOP = "{%% for m in messages %%}%s{%% endfor %%}"
SHOWN = {
    "a mark behind each turn": (LOOP % f"{TURN}<|end|>\n", ["<|end|>", "<|turn|>"]),
    "a mark behind an answer alone": (
        LOOP % (TURN + "{% if m.role == 'assistant' %}<|end|>{% endif %}"),
        ["<|end|>", "<|turn|>"],
    ),
    "the next turn": (LOOP % TURN, ["<|turn|>"]),
    "another mark behind the last one": (
        LOOP % (TURN + "{% if loop.last %}<|end|>{% else %}<|start|>{% endif %}"),
        ["<|end|>", "<|start|>", "<|turn|>"],
    ),
    "plain text": (LOOP % "{{ m.role }}: {{ m.content }}\n", []),
    "no answers": (LOOP % "{% if m.role == 'user' %}<|turn|>{{ m.content }}<|end|>{% endif %}", []),
    "no such chats": ("{{ raise_exception('no') }}", []),
}


async def behind(source, tokenizer):
    """The tokens behind an answer, by a template in a process."""
    template = ChatTemplate({"default": source}, TOKENS, tokenizer.special_texts, 5.0)
    await template.start()
    try:
        return await behind_answer(template, tokenizer)
    finally:
        await template.close()


@pytest.mark.parametrize("what", SHOWN)
def test_the_tokens_behind_an_answer_are_found(what, model_dir):
    source, expected = SHOWN[what]
    tokenizer = TextTokenizer(str(model_dir))
    ids, texts = asyncio.run(behind(source, tokenizer))
    assert texts == expected
    assert {tokenizer.specials.ids[text] for text in texts} <= set(ids)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gpt-oss"])  # whose first mark ends a call
def test_the_mark_by_which_a_family_ends_its_turns_is_among_them(name, tmp_path):
    family = FAMILIES[name]
    write_tokenizer(tmp_path, family.specials, family.template, ["words of a text"], 300)
    _, texts = asyncio.run(behind(family.template, TextTokenizer(str(tmp_path))))
    assert family.specials[0] in texts


@pytest.mark.parametrize(("ends", "is_said"), [((0,), False), ((2, 0), False), ((2,), True), ((), True)])
def test_a_model_whose_answers_would_not_end_is_said_once_it_is_ready(ends, is_said, serving, tmp_path, caplog):
    """The template of these tests ends turns with token 0."""
    ready = tmp_path / "ready.json"

    async def main():
        async with serving(wait=False, ends=ends, ready_file=str(ready)) as s:
            await s.until(lambda: ready.is_file() and json.loads(ready.read_text())["ready"])

    asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if "ends an answer with" in record.getMessage()]
    assert len(said) == is_said
    if said:
        named = "<|start|>" if ends else "none"
        assert said[0].startswith("tiny: the chat template ends an answer with <|end|>, and ")
        assert f"name as ends: {named}; " in said[0]
        assert """--hf-overrides '{"eos_token_id": 0}'""" in said[0]
