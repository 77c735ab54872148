"""Embeddings through a whole frontend: inputs are requests of their own, gathered, bounded, resumed and aborted."""

import asyncio
from array import array

import msgspec
import numpy as np
import pytest

from quire.frontend.request.sentence_settings import normalized
from quire.frontend.request.vectors.vector_call import MAX_IN_FLIGHT, MAX_INPUTS
from quire.frontend.text.encode_jobs import EncodeText, encode_part
from quire.proto.api import EmbedRequest, GenerateRequest, RequestError, ScoreRequest
from quire.proto.messages.heads import EmbeddingVector
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import Finish, Outputs
from quire.proto.transport.wire import unpack

SIZE = 4


def vector_of(submit):
    """A stand-in for the model: direction and length hang on the tokens."""
    ids = unpack(submit.prompt).astype(np.float32)
    return np.array([len(ids), ids[0], ids[-1], 1.0], np.float32)


def answer(scheduler, submit, vector=None):
    finish = Finish(submit.number, 0, "stop", Usage(len(submit.prompt) // 4, 0, 0, 0.0, 0.0, 0.0), 0)
    raw = (vector_of(submit) if vector is None else vector).tobytes()
    scheduler.send(Outputs(scheduler.epoch, b"", b"", b"", b"", (finish,), (), (EmbeddingVector(submit.number, raw),)))


def embeds(scheduler, **changes):
    """From now on the scheduler serves an embedding model, and answers each input at once."""
    fields = {"task": "embed", "embedding_size": SIZE, "whole_prompts": True, "shares_prefixes": False, **changes}
    scheduler.facts = msgspec.structs.replace(scheduler.facts, **fields)
    scheduler.script = lambda submit: answer(scheduler, submit)
    scheduler.change("ready")


@pytest.fixture
def embedding(serving):
    """`embedding(test, **config)`: runs `test(s)` against a frontend whose engine embeds."""

    def run(test, script=True, **config):
        async def body():
            async with serving(**config) as s:
                embeds(s.scheduler)
                await s.until(lambda: s.server.scheduler.welcome.facts.task == "embed")
                if not script:
                    s.scheduler.script = None
                await test(s)

        asyncio.run(body())

    return run


def test_every_input_is_a_request_and_the_vectors_come_in_order(embedding):
    async def test(s):
        inputs = ["hello world", [5, 6, 7], "stop", [9]]
        answer = await s.client.embed(EmbedRequest(inputs=inputs, request_id="mine", priority=None))
        submits = {unpack(submit.prompt).tobytes(): submit for submit in s.scheduler.submits}
        assert {(submit.task, submit.label, submit.n) for submit in submits.values()} == {("embed", "mine", 1)}
        assert len(submits) == 4
        assert answer.request_id == "mine"
        assert answer.prompt_tokens == sum(len(prompt) // 4 for prompt in submits)
        for index, ids in ((1, [5, 6, 7]), (3, [9])):
            raw = np.array([len(ids), ids[0], ids[-1], 1.0])
            np.testing.assert_allclose(answer.vectors[index], raw / np.linalg.norm(raw), atol=1e-6)
        (raw,) = (await s.client.embed(EmbedRequest(inputs=[[9]], normalize=False))).vectors
        assert raw == (1.0, 9.0, 9.0, 1.0)
        (short,) = (await s.client.embed(EmbedRequest(inputs=[[9]], dimensions=1))).vectors
        assert short == (1.0,)

    embedding(test)


def test_a_large_call_leaves_room_for_others(embedding):
    async def test(s):
        task = asyncio.create_task(s.client.embed(EmbedRequest(inputs=[[number + 1] for number in range(400)])))
        await s.scheduler.submitted(MAX_IN_FLIGHT)
        await s.client.server_info()
        assert len(s.scheduler.submits) == MAX_IN_FLIGHT
        s.scheduler.script = lambda submit: answer(s.scheduler, submit)
        for submit in list(s.scheduler.submits):
            answer(s.scheduler, submit)
        vectors = (await task).vectors
        assert [round(vector[1] / vector[0]) for vector in vectors] == [number + 1 for number in range(400)]

    embedding(test, script=False)


def test_one_bad_input_fails_the_call_by_name_and_leaves_nothing_running(embedding):
    async def test(s):
        with pytest.raises(RequestError) as refused:
            await s.client.embed(EmbedRequest(inputs=[[1], [2], [3, 500]]))
        assert (refused.value.reason, refused.value.field) == ("TOKEN_OUT_OF_RANGE", "inputs[2]")
        await s.until(
            lambda: {n for a in s.scheduler.aborts for n in a.numbers} == {x.number for x in s.scheduler.submits}
        )
        await s.until(lambda: s.server.pipeline.num_open == 0)

    embedding(test, script=False)


def test_a_refusal_of_the_scheduler_names_the_input(embedding):
    async def test(s):
        def script(submit):
            if len(submit.prompt) == 4:
                return answer(s.scheduler, submit)
            usage = Usage(1, 0, 0, 0.0, 0.0, 0.0)
            text = "more than one step takes"
            finish = Finish(submit.number, 0, "rejected", usage, 0, error="EXCEEDS_CAPACITY", message=text)
            return s.scheduler.outputs(submit.number, (), [finish])

        s.scheduler.script = script
        with pytest.raises(RequestError, match="more than one step takes") as refused:
            await s.client.embed(EmbedRequest(inputs=[[1], [2, 3]]))
        assert (refused.value.reason, refused.value.field) == ("EXCEEDS_CAPACITY", "inputs[1]")

    embedding(test)


def test_a_cancelled_call_aborts_all_its_inputs(embedding):
    async def test(s):
        task = asyncio.create_task(s.client.embed(EmbedRequest(inputs=[[1], [2], [3]])))
        await s.scheduler.submitted(3)
        task.cancel()
        await s.until(lambda: len({number for abort in s.scheduler.aborts for number in abort.numbers}) == 3)
        await s.until(lambda: s.server.pipeline.num_open == 0)

    embedding(test, script=False)


def test_after_the_schedulers_loss_only_what_has_no_vector_is_submitted_again(embedding):
    async def test(s):
        task = asyncio.create_task(s.client.embed(EmbedRequest(inputs=[[1], [2]])))
        await s.scheduler.submitted(2)
        first = next(submit for submit in s.scheduler.submits if submit.prompt[0] == 1)
        answer(s.scheduler, first)
        await s.until(lambda: s.server.scheduler.num_streams == 1)
        s.scheduler.life = "life-2"
        s.scheduler.script = lambda submit: answer(s.scheduler, submit)
        s.scheduler.change("ready")
        assert len((await task).vectors) == 2
        again = s.scheduler.submits[2:]
        assert [(unpack(submit.prompt).tolist(), submit.task, submit.resumed) for submit in again] == [
            ([2], "embed", ())
        ]

    embedding(test, script=False)


def test_scores_are_cosines(embedding):
    async def test(s):
        documents = ["hello hello world", "stop here now"]
        vectors = (await s.client.embed(EmbedRequest(inputs=["hello", *documents]))).vectors
        scores = (await s.client.score(ScoreRequest(query="hello", documents=documents))).scores
        np.testing.assert_allclose(scores, np.array(vectors[1:]) @ np.array(vectors[0]), atol=1e-6)
        with pytest.raises(RequestError) as refused:
            await s.client.score(ScoreRequest(query="hello", documents=["fine", ""]))
        assert (refused.value.reason, refused.value.field) == ("EMPTY_PROMPT", "documents[1]")

    embedding(test)


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"inputs": []}, "inputs", "EMPTY_PROMPT"),
        ({"inputs": [[1]] * (MAX_INPUTS + 1)}, "inputs", "INVALID_PARAMETER"),
        ({"inputs": [[1]], "dimensions": 0}, "dimensions", "INVALID_PARAMETER"),
        ({"inputs": [[1]], "dimensions": SIZE + 1}, "dimensions", "INVALID_PARAMETER"),
        ({"inputs": [[1]], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "INVALID_PARAMETER"),
        ({"inputs": [[1]], "add_special_tokens": False}, "add_special_tokens", "INVALID_PARAMETER"),
        ({"inputs": [[1]], "model": "other"}, "model", "UNKNOWN_MODEL"),
        ({"inputs": [[1]], "timeout_seconds": -1.0}, "timeout_seconds", "INVALID_PARAMETER"),
        ({"inputs": [list(range(1, 400)) * 2]}, "inputs[0]", "CONTEXT_LENGTH_EXCEEDED"),
        ({"inputs": ["x" * 100_000]}, "inputs[0]", "CONTEXT_LENGTH_EXCEEDED"),
        ({"inputs": [""]}, "inputs[0]", "EMPTY_PROMPT"),
        ({"inputs": [[1]], "request_id": ""}, "request_id", "INVALID_PARAMETER"),
        ({"inputs": [[1]], "request_id": "a\x1b[2J"}, "request_id", "INVALID_PARAMETER"),
    ],
)
def test_a_users_mistake_is_refused_before_anything_is_submitted(fields, field, reason, embedding):
    async def test(s):
        with pytest.raises(RequestError) as refused:
            await s.client.embed(EmbedRequest(**fields))
        assert (refused.value.field, refused.value.reason) == (field, reason)
        assert not s.scheduler.submits

    embedding(test)


def test_a_prompt_may_fill_the_context_and_longer_ones_can_be_cut(embedding):
    async def test(s):
        long = [*range(1, 400), *range(1, 400)]
        await s.client.embed(EmbedRequest(inputs=[long[:512]]))
        await s.client.embed(EmbedRequest(inputs=[long], truncate_prompt_tokens=100))
        assert unpack(s.scheduler.submits[1].prompt).tolist() == long[:100]
        await s.client.embed(EmbedRequest(inputs=[long], truncate_prompt_tokens=-1, truncation_side="left"))
        assert unpack(s.scheduler.submits[2].prompt).tolist() == long[-512:]
        asked = ScoreRequest(query="hello world", documents=["hello world"], max_tokens_per_doc=1)
        await s.client.score(asked)
        assert sorted(len(unpack(submit.prompt)) for submit in s.scheduler.submits[3:])[0] == 1

    embedding(test)


def test_a_model_is_asked_for_its_own_task(serving, embedding):
    async def test(s):
        with pytest.raises(RequestError, match="makes vectors here") as refused:
            await s.client.generate(GenerateRequest(input="hello"))
        assert refused.value.reason == "UNSUPPORTED"

    embedding(test)

    async def generating():
        async with serving() as s:
            with pytest.raises(RequestError, match="--task embed") as refused:
                await s.client.embed(EmbedRequest(inputs=["hello"]))
            assert refused.value.reason == "UNSUPPORTED"

    asyncio.run(generating())


class Bracketed:
    """A tokenizer that puts 1 before and 2 behind every text of words, and 7 behind those to be embedded."""

    end = 7

    def column(self, text, add_special_tokens=True, parse_special=False):
        ids = [len(word) + 10 for word in text.split()]
        return array("i", [1, *ids, 2] if add_special_tokens else ids)


def part(text: str, job: EncodeText) -> list[int]:
    return encode_part(Bracketed(), text, job).tolist()


def test_cutting_keeps_the_first_tokens_and_what_stands_around_every_text():
    text = "a bb ccc dddd"
    cut = [part(text, EncodeText(True, keep=keep)) for keep in (None, 6, 5, 3, 2, 1)]
    whole = [1, 11, 12, 13, 14, 2]
    assert cut == [whole, whole, [1, 11, 12, 13, 2], [1, 11, 2], [1, 11], [1]]
    assert part(text, EncodeText(False, keep=2)) == [11, 12]
    ended = [part(text, EncodeText(True, keep=keep, ends=True)) for keep in (None, 5, 1)]
    assert ended == [[*whole, 7], [1, 11, 12, 2, 7], [7]]
    assert part(text, EncodeText(True, keep=5, keep_last=True, ends=True)) == [1, 13, 14, 2, 7]


def test_zeros_stay_zeros():
    assert normalized(np.zeros(3, np.float32)).tolist() == [0.0, 0.0, 0.0]
    assert np.linalg.norm(normalized(np.full(3, 1e-30, np.float32))) == pytest.approx(1.0)
