"""Labels of tokens through a whole frontend: activations by token, and the most numbers that a call may have."""

import asyncio
import threading

import msgspec
import numpy as np
import pytest

from quire.frontend.request.vectors import classes
from quire.frontend.request.vectors.activation import activated
from quire.proto.api import ClassifyRequest, RequestError
from quire.proto.messages.heads import EmbeddingVector, HeadFacts
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import Finish, Outputs
from quire.proto.transport.wire import unpack


def answer(scheduler, submit):
    """The raw numbers of a token are its id and nothing."""
    ids = unpack(submit.prompt).astype(np.float32)
    raw = np.stack((ids, np.zeros_like(ids)), 1).tobytes()
    finish = Finish(submit.number, 0, "stop", Usage(len(ids), 0, 0, 0.0, 0.0, 0.0), 0)
    scheduler.send(Outputs(scheduler.epoch, b"", b"", b"", b"", (finish,), (), (EmbeddingVector(submit.number, raw),)))


@pytest.fixture
def labelling(serving):
    """`labelling(test, activation)`: runs `test(s)` against a frontend whose engine labels tokens."""

    def run(test, activation="softmax"):
        async def body():
            async with serving() as s:
                head = HeadFacts(("no", "yes"), activation, by_token=True)
                fields = {"task": "classify", "head": head, "shares_prefixes": False}
                s.scheduler.facts = msgspec.structs.replace(s.scheduler.facts, **fields)
                s.scheduler.script = lambda submit: answer(s.scheduler, submit)
                s.scheduler.change("ready")
                await s.until(lambda: s.server.scheduler.welcome.facts.by_token)
                await test(s)

        asyncio.run(body())

    return run


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_each_token_goes_through_the_activation_by_itself(activation, labelling):
    ids = np.array([1.0, 2.0, 3.0])
    both = {
        "softmax": np.stack((1 / (1 + np.exp(-ids)), 1 / (1 + np.exp(ids))), 1),
        "sigmoid": np.stack((1 / (1 + np.exp(-ids)), np.full(3, 0.5)), 1),
        "none": np.stack((ids, np.zeros(3)), 1),
    }

    async def test(s):
        found = await s.client.classify(ClassifyRequest(inputs=[[1, 2, 3], [3]]))
        np.testing.assert_allclose(found.of_tokens(0), both[activation], atol=1e-6)
        np.testing.assert_allclose(found.of_tokens(1), both[activation][2:], atol=1e-6)
        raw = await s.client.classify(ClassifyRequest(inputs=[[1, 2, 3]], use_activation=False))
        np.testing.assert_allclose(raw.of_tokens(0), both["none"], atol=1e-6)
        assert (found.probs, found.prompt_tokens) == ([], 4)

    labelling(test, activation)


def test_a_call_has_no_more_numbers_than_an_answer_holds(labelling, monkeypatch):
    monkeypatch.setattr(classes, "MOST_NUMBERS", 12)

    async def test(s):
        assert len((await s.client.classify(ClassifyRequest(inputs=[[1, 2], [3, 4, 5, 6]]))).token_probs) == 2
        with pytest.raises(RequestError, match=r"more than 12; send fewer or shorter inputs") as refused:
            await s.client.classify(ClassifyRequest(inputs=[[1] * 5, [2, 3]]))
        assert refused.value.field == "inputs[1]"

    labelling(test)


def test_the_loop_computes_no_numbers_of_tokens(labelling, monkeypatch):
    """Eight million of them keep a processor for a tenth of a second, in which streams of others would stand still."""
    threads = []

    def noted(*arguments):
        threads.append(threading.current_thread())
        return activated(*arguments)

    monkeypatch.setattr(classes, "activated", noted)

    async def test(s):
        assert len((await s.client.classify(ClassifyRequest(inputs=[[1, 2]]))).token_probs) == 1
        assert threads != []
        assert threading.current_thread() not in threads

    labelling(test)
