"""Scores of a cross-encoder through a whole frontend: pairs are requests of their own, and their head's numbers come
back through its activation."""

import asyncio
import math
from collections import Counter

import msgspec
import numpy as np
import pytest

from quire.frontend.request.vectors.activation import activated
from quire.frontend.request.vectors.vector_call import MAX_IN_FLIGHT, PER_TURN
from quire.frontend.text.async_tokenizer import AsyncTokenizer
from quire.frontend.text.pair_template import PairTemplate
from quire.proto.api import EmbedRequest, RequestError, ScoreRequest
from quire.proto.messages.heads import EmbeddingVector, HeadFacts
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import Finish, Outputs
from quire.proto.transport.wire import unpack


def answer(scheduler, submit):
    """The raw number of a pair is its length."""
    finish = Finish(submit.number, 0, "stop", Usage(len(submit.prompt) // 4, 0, 0, 0.0, 0.0, 0.0), 0)
    raw = np.array([len(submit.prompt) // 4 - 5], np.float32).tobytes()
    scheduler.send(Outputs(scheduler.epoch, b"", b"", b"", b"", (finish,), (), (EmbeddingVector(submit.number, raw),)))


@pytest.fixture
def scoring(serving):
    """`scoring(test)`: runs `test(s)` against a frontend whose engine scores pairs."""

    def run(test, activation="sigmoid", padding=-1, **config):
        async def body():
            async with serving(**config) as s:
                head = HeadFacts(("LABEL_0",), activation, padding=padding)
                fields = {"task": "score", "head": head, "whole_prompts": True, "shares_prefixes": False}
                s.scheduler.facts = msgspec.structs.replace(s.scheduler.facts, **fields)
                s.scheduler.script = lambda submit: answer(s.scheduler, submit)
                s.scheduler.change("ready")
                await s.until(lambda: s.server.scheduler.welcome.facts.task == "score")
                await test(s)

        asyncio.run(body())

    return run


def sigmoid(number):
    return 1 / (1 + math.exp(-number))


def test_every_pair_is_one_request_and_its_number_goes_through_the_activation(scoring):
    async def test(s):
        texts = ["hello world", "stop", ""]
        lengths = [len(s.server.pipeline._models.default.tokenizer.encode(text)) for text in ("hello", *texts)]
        asked = ScoreRequest(query="hello", documents=texts, request_id="mine")
        found = await s.client.score(asked)
        assert [(submit.task, submit.label) for submit in s.scheduler.submits] == [("score", "mine")] * 3
        raw = [lengths[0] + length - 5 for length in lengths[1:]]
        assert found.scores == pytest.approx([sigmoid(number) for number in raw])
        assert found.prompt_tokens == sum(number + 5 for number in raw)
        plain = await s.client.score(ScoreRequest(query="hello", documents=texts, use_activation=False))
        assert list(plain.scores) == raw
        pairs = await s.client.score(ScoreRequest(queries=texts[:2], documents=texts[:2], use_activation=False))
        assert list(pairs.scores) == [2 * length - 5 for length in lengths[1:3]]

    scoring(test)


def test_long_pairs_are_refused_by_name_or_cut(scoring):
    async def test(s):
        long = "hello " * 600
        with pytest.raises(RequestError, match=r"more than the context of 512; .* truncate_prompt_tokens") as refused:
            await s.client.score(ScoreRequest(query="hello", documents=["stop", long]))
        assert (refused.value.reason, refused.value.field) == ("CONTEXT_LENGTH_EXCEEDED", "documents[1]")
        await s.client.score(ScoreRequest(query="hello", documents=[long], truncate_prompt_tokens=-1))
        await s.client.score(ScoreRequest(query=long, documents=[long], truncate_prompt_tokens=20))
        await s.client.score(ScoreRequest(query=long, documents=[long], max_tokens_per_doc=5, max_tokens_per_query=7))
        # the pair before the one that was refused may have been on its way
        assert [len(unpack(submit.prompt)) for submit in s.scheduler.submits[-3:]] == [512, 20, 12]

    scoring(test)


def test_a_second_text_of_nothing_but_padding_leaves_the_prompt_with_it(scoring):
    """A decoder's prompt is submitted without the padding at its end, behind which no token of type 1 can begin."""

    async def test(s):
        tokenizer = s.server.pipeline._models.default.tokenizer
        tokenizer.pairs = PairTemplate((), (9,), (9,), 1)
        length = len(tokenizer.encode("hello"))
        await s.client.score(ScoreRequest(query="hello", documents=["", "hello"]))
        sent = sorted((len(unpack(submit.prompt)), submit.second_text) for submit in s.scheduler.submits)
        assert sent == [(length, 0), (2 * length + 1, length + 1)]

    scoring(test, padding=9)


def test_a_call_goes_on_in_a_drain_that_only_the_scheduler_knows_of(scoring):
    async def test(s):
        await s.client.score(ScoreRequest(query="hello", documents=["stop"] * (MAX_IN_FLIGHT + 3)))
        accepted = [submit.accepted for submit in s.scheduler.submits]
        assert accepted == [False] * MAX_IN_FLIGHT + [True] * 3

    scoring(test)


def test_others_have_turns_between_pairs(scoring, monkeypatch):
    turn, turns = 0, []
    join = PairTemplate.join

    def joined(*args, **kwargs):
        turns.append(turn)
        return join(*args, **kwargs)

    async def count():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def test(s):
        monkeypatch.setattr(PairTemplate, "join", joined)
        counting = asyncio.create_task(count())
        try:
            await s.client.score(ScoreRequest(query="hello", documents=["stop"] * 600))
        finally:
            counting.cancel()
        assert max(Counter(turns).values()) <= PER_TURN

    scoring(test)


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"query": "a", "documents": []}, "documents", "must hold 1 to 2047 entries, got 0"),
        ({"query": "a", "documents": ["b"] * 10_000}, "documents", "got 10000; send them in several requests"),
        ({"documents": ["b"]}, "query", "is missing; set it, or queries, but not both"),
        ({"query": "a", "queries": ["a"], "documents": ["b"]}, "queries", "excludes query: one request has one"),
        ({"queries": ["a", "b"], "documents": ["b"] * 3}, "query", "must be one text, or as many as documents: 3"),
        ({"query": "a", "documents": ["b"], "max_tokens_per_doc": 0}, "max_tokens_per_doc", "at least 1"),
        ({"query": "a", "documents": ["b"], "max_tokens_per_query": 0}, "max_tokens_per_query", "at least 1"),
        ({"query": "a", "documents": ["b"], "truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "at least 2"),
        ({"query": "a", "documents": ["b"], "request_id": "a\n"}, "request_id", "1 to 128 visible ASCII characters"),
    ],
)
def test_a_users_mistake_is_named(fields, field, text, scoring):
    async def test(s):
        with pytest.raises(RequestError, match=text) as refused:
            await s.client.score(ScoreRequest(**fields))
        assert refused.value.field == field
        assert not s.scheduler.submits

    scoring(test)


def test_a_reranker_says_where_it_is_asked(scoring):
    async def test(s):
        with pytest.raises(RequestError, match="scores pairs of texts here; ask it through /v1/score or /v1/rerank"):
            await s.client.embed(EmbedRequest(inputs=["hello"]))
        info = await s.client.server_info()
        assert (info.task, info.embedding_size, tuple(info.labels)) == ("score", 0, ("LABEL_0",))

    scoring(test)


def test_activations_do_not_overflow():
    raw = np.array([-1000.0, 0.0, 1000.0], np.float32)
    assert activated(raw, "sigmoid").tolist() == [0.0, 0.5, 1.0]
    assert activated(raw, "softmax").tolist() == [0.0, 0.0, 1.0]
    assert activated(raw, "none").tolist() == [-1000.0, 0.0, 1000.0]


ROLE = "{{{{ (messages | selectattr('role', 'eq', '{}') | first).content }}}}"
PAIRS = f"{ROLE.format('query')}|{ROLE.format('document')}"


def test_a_template_of_pairs_alone_is_one_for_them(scoring, tmp_path):
    (tmp_path / "pairs.jinja").write_text(PAIRS)

    async def test(s):
        encode = s.server.pipeline._models.default.tokenizer.encode
        await s.client.score(ScoreRequest(query="hello", documents=["stop"]))
        assert unpack(s.scheduler.submits[-1].prompt).tolist() == encode("hello|stop")
        with pytest.raises(RequestError, match="is not shown by a template of this model") as refused:
            await s.client.score(ScoreRequest(query="hello", documents=["stop"], instruction="go"))
        assert refused.value.field == "instruction"

    scoring(test, chat_template=str(tmp_path / "pairs.jinja"))


def test_an_instruction_has_its_bound(scoring, tmp_path):
    (tmp_path / "pairs.jinja").write_text("{{ instruction | default('none') }}" + PAIRS)

    async def test(s):
        encode = s.server.pipeline._models.default.tokenizer.encode
        await s.client.score(ScoreRequest(query="hello", documents=["stop"], instruction="go"))
        assert unpack(s.scheduler.submits[-1].prompt).tolist() == encode("gohello|stop")
        with pytest.raises(RequestError, match="5000 characters; at most 4096"):
            await s.client.score(ScoreRequest(query="hello", documents=["stop"], instruction="a" * 5000))

    scoring(test, chat_template=str(tmp_path / "pairs.jinja"))


@pytest.fixture
def encoded(monkeypatch):
    """Texts that were encoded, in turns with others."""
    texts = []
    ids = AsyncTokenizer.ids

    async def noted(self, job, text, *args):
        texts.append(text)
        await asyncio.sleep(0)
        return await ids(self, job, text, *args)

    monkeypatch.setattr(AsyncTokenizer, "ids", noted)
    return texts


def test_a_query_of_all_documents_is_cut_once_and_shown_short(scoring, encoded, tmp_path):
    """A long query and many documents would cost their product otherwise: of tokens, and of renderings."""
    (tmp_path / "pairs.jinja").write_text(PAIRS)

    async def test(s):
        long = "hello " * 2000
        for cut in ({"truncate_prompt_tokens": 20}, {"max_tokens_per_query": 7}):
            encoded.clear()
            await s.client.score(ScoreRequest(query=long, documents=["stop"] * 40, **cut))
            assert sum(len(text) > 1000 for text in encoded) == 1
            assert {len(unpack(submit.prompt)) <= 20 for submit in s.scheduler.submits[-40:]} == {True}

    scoring(test, chat_template=str(tmp_path / "pairs.jinja"))


@pytest.mark.parametrize("kind", ["of two texts", "of tokens"])
def test_a_query_of_all_documents_is_encoded_once(kind, scoring, encoded):
    async def test(s):
        if kind == "of tokens":
            head = HeadFacts(("LABEL_0",), "sigmoid", is_of_tokens=True)
            s.scheduler.facts = msgspec.structs.replace(s.scheduler.facts, head=head)
            s.scheduler.change("ready")
            await s.until(lambda: s.server.scheduler.welcome.facts.head.is_of_tokens)
        asked = ScoreRequest(query="hello " * 2000, documents=["stop"] * 40, truncate_prompt_tokens=20)
        await s.client.score(asked)
        assert sum(len(text) > 1000 for text in encoded) == 1
        assert {len(unpack(submit.prompt)) for submit in s.scheduler.submits} == {20}

    scoring(test)


def test_a_template_that_fails_fails_the_pair(scoring, tmp_path):
    (tmp_path / "pairs.jinja").write_text("{{ raise_exception('no ' + messages[1].content) }}")

    async def test(s):
        with pytest.raises(RequestError, match="the chat template refused them: no stop") as refused:
            await s.client.score(ScoreRequest(query="hello", documents=["stop"]))
        assert refused.value.field == "documents[0]"

    scoring(test, chat_template=str(tmp_path / "pairs.jinja"))
