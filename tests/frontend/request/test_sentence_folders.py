"""Folders that sentence-transformers 6.2 saved, through a whole frontend: its token ids of texts and pairs."""

import asyncio
import json

import msgspec
import numpy as np
import pytest
from sentence import saved

from quire.frontend.request.sentence_settings import sentence_settings
from quire.frontend.request.vectors.scores import similarities
from quire.proto.api import EmbedRequest, RequestError, ScoreRequest
from quire.proto.messages.heads import EmbeddingVector, HeadFacts
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import Finish, Outputs
from quire.proto.transport.wire import unpack

SETTINGS = [name for name in saved.names("vectors") if ":" not in name]
RAW = np.array([3.0, 4.0, 12.0, 0.0, 0.0, 84.0], np.float32)


@pytest.fixture
def asked(serving, tmp_path):
    """`asked(name, ask, task)`: runs `ask(s)` against a frontend of a saved folder whose engine answers RAW."""

    def answer(scheduler, submit):
        finish = Finish(submit.number, 0, "stop", Usage(len(submit.prompt) // 4, 0, 0, 0.0, 0.0, 0.0), 0)
        raw = EmbeddingVector(submit.number, (RAW if submit.task == "embed" else RAW[:1]).tobytes())
        scheduler.send(Outputs(scheduler.epoch, b"", b"", b"", b"", (finish,), (), (raw,)))

    def run(name, ask, task="embed", edit=None):
        async def body():
            folder = saved.write(name, tmp_path) if not (tmp_path / "config.json").exists() else tmp_path
            if edit is not None:
                edit(folder)
            async with serving(model=str(folder), length=max(map(len, saved.answers(name)["ids"]))) as s:
                head = None if task == "embed" else HeadFacts(("LABEL_0",), "sigmoid")
                size = len(RAW) if task == "embed" else 0
                fields = {"task": task, "embedding_size": size, "head": head, "whole_prompts": True}
                s.scheduler.facts = msgspec.structs.replace(s.scheduler.facts, shares_prefixes=False, **fields)
                s.scheduler.script = lambda submit: answer(s.scheduler, submit)
                s.scheduler.change("ready")
                await s.until(lambda: s.server.scheduler.welcome.facts.task == task)
                await ask(s)

        asyncio.run(body())

    return run


def sent(s):
    """The prompts of the requests so far, by the longest."""
    found = sorted((unpack(submit.prompt).tolist() for submit in s.scheduler.submits), key=len)
    s.scheduler.submits.clear()
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_the_ids_of_texts_are_those_of_sentence_transformers(name, asked):
    wanted = saved.answers(name)

    async def ask(s):
        for text, ids in zip(wanted["texts"], wanted["ids"], strict=True):
            await s.client.embed(EmbedRequest(inputs=[text], truncate_prompt_tokens=-1))
            assert sent(s) == [ids]
        settings = s.server.pipeline._models.default.sentence
        if settings.prompt("embed") == "" and not settings.chats:
            shown = (await s.client.tokenize(wanted["texts"][1])).token_ids
            assert list(shown) == wanted["ids"][1]

    asked(name, ask)


def test_the_similarity_of_two_vectors_is_the_one_that_the_folder_names(tmp_path):
    for name in SETTINGS:
        (tmp_path / name).mkdir()
        kind = sentence_settings(saved.write(name, tmp_path / name)).similarity
        vectors = np.array(saved.answers(name)["vectors"])
        (ours,) = similarities(vectors[:1], vectors[1:], kind)
        assert ours == pytest.approx(saved.answers(name)["similarity"], abs=1e-5), name


@pytest.mark.parametrize("name", saved.names("scores"))
def test_the_ids_of_pairs_are_those_of_its_cross_encoders(name, asked):
    wanted = saved.answers(name)

    async def ask(s):
        for (query, document), ids in zip(wanted["pairs"], wanted["ids"], strict=True):
            await s.client.score(ScoreRequest(query=query, documents=[document], truncate_prompt_tokens=-1))
            assert sent(s) == [ids]

    asked(name, ask, "score")


def test_a_text_that_would_be_cut_is_refused_unless_a_request_asks_for_it(asked):
    async def ask(s):
        with pytest.raises(RequestError, match="the context of 9 tokens") as refused:
            await s.client.embed(EmbedRequest(inputs=saved.answers("max_seq_length")["texts"]))
        assert (refused.value.reason, refused.value.field) == ("CONTEXT_LENGTH_EXCEEDED", "inputs[0]")

    asked("max_seq_length", ask)


def test_a_prompt_may_be_named_and_stands_before_texts_alone(asked):
    async def ask(s):
        async def ids(**fields):
            await s.client.embed(EmbedRequest(**fields))
            return sent(s)[-1]

        plain = await ids(inputs=["dog"])
        assert await ids(inputs=["dog"], prompt_name="query") == await ids(inputs=["cat: dog"])
        assert await ids(inputs=["dog"], prompt_name="document") == plain
        assert await ids(inputs=[plain]) == plain
        with pytest.raises(RequestError, match="'mine' is no prompt of this model; it has query, document, other"):
            await ids(inputs=["dog"], prompt_name="mine")
        with pytest.raises(RequestError, match="is put in front of texts only") as refused:
            await ids(inputs=[plain], prompt_name="query")
        assert refused.value.field == "prompt_name"

    asked("prompts", ask)


def test_texts_that_are_chats_need_a_template(asked):
    async def ask(s):
        raise AssertionError("it started")

    with pytest.raises(ValueError, match="there is no template for it; set --chat-template FILE"):
        asked("chats", ask, edit=lambda folder: (folder / "chat_template.jinja").unlink())


def test_the_default_prompt_stands_before_both_texts_of_a_cosine(asked):
    async def ask(s):
        await s.client.score(ScoreRequest(query="dog", documents=["the cat sat on a mat"]))
        assert sent(s) == saved.answers("default prompt")["ids"][::-1]
        named = EmbedRequest(inputs=["On the mat dog"], prompt_name="document")
        await s.client.embed(named)
        assert sent(s) == [saved.answers("default prompt")["ids"][1]]

    asked("default prompt", ask)


def test_vectors_are_cut_after_their_length_was_made_1_unless_a_request_cuts(asked):
    async def ask(s):
        async def vector(**fields):
            return (await s.client.embed(EmbedRequest(inputs=["dog"], **fields))).vectors[0]

        np.testing.assert_allclose(await vector(), RAW[:5] / np.linalg.norm(RAW), atol=1e-6)
        np.testing.assert_allclose(await vector(dimensions=3), RAW[:3] / 13.0, atol=1e-6)
        np.testing.assert_allclose(await vector(normalize=True), RAW[:5] / 13.0, atol=1e-6)
        np.testing.assert_allclose(await vector(normalize=False), RAW[:5], atol=1e-6)

    asked("truncate_dim", ask)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"default_prompt_name": "mine"}, "default_prompt_name: 'mine' is none of prompts: query, document"),
        ({"prompts": {"a": 1}}, r"Expected `str \| null`, got `int` - at `\$\[\.\.\.\]`"),
        ({"truncate_dim": 0}, "truncate_dim: must be at least 1, got 0"),
        ({"similarity_fn_name": "x" * 9999}, r"config_sentence_transformers\.json: Invalid enum value 'x{99,400}$"),
        ({"similarity_fn_name": "\ud800"}, r"config_sentence_transformers\.json: .* surrogates not allowed"),
        (
            {"default_prompt_name": "mine", "prompts": dict.fromkeys(map(str, range(9999)), "")},
            r"none of prompts: query, document, 0, 1, .{300,400}$",
        ),
    ],
)
def test_settings_that_nothing_can_be_made_of_are_refused_at_start(fields, text, tmp_path):
    made = saved.write("prompts", tmp_path)
    path = made / "config_sentence_transformers.json"
    path.write_text(json.dumps({**fields}))
    with pytest.raises(ValueError, match=text):
        sentence_settings(made)


@pytest.mark.parametrize(
    ("stages", "normalizes"),
    [
        (None, True),
        (["models.Transformer"], False),
        (["models.Pooling", "models.Normalize"], True),
        (["models.Normalize", "models.Dropout"], True),
        (["models.Normalize", "models.Dense"], False),
    ],
)
def test_vectors_have_length_1_where_the_last_stage_makes_it_so(stages, normalizes, tmp_path):
    if stages is not None:
        listed = [{"type": f"sentence_transformers.{stage}"} for stage in stages]
        (tmp_path / "modules.json").write_text(json.dumps(listed))
    assert sentence_settings(tmp_path).normalizes == normalizes


def test_a_list_of_stages_that_does_not_read_is_named(tmp_path):
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ValueError, match=r"modules\.json: does not read"):
        sentence_settings(tmp_path)
