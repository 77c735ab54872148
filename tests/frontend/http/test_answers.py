"""Large answers: the same bytes, written in short steps, none of which keeps streams waiting."""

import asyncio

import msgspec
import pytest

from quire.frontend.http.answer import STEP, STEP_BYTES, LargeResponse, json_list
from quire.frontend.limits.answer_budget import AnswerBudget
from quire.proto.api import RequestError


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES])
def test_a_large_answer_leaves_in_pieces(size):
    body = bytes(number % 251 for number in range(size))
    sent = []

    async def send(message):
        sent.append(message)

    budget = AnswerBudget()
    asyncio.run(LargeResponse(body, budget.answer(size))({}, None, send))
    assert budget.used == 0
    head, *pieces = sent
    assert (b"content-length", str(size).encode()) in head["headers"]
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= STEP_BYTES
    assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]


@pytest.mark.parametrize("count", [0, 1, STEP, 2 * STEP + 1])
def test_a_list_in_steps_is_the_list(count):
    assert msgspec.json.decode(json_list(range(count))) == list(range(count))


def test_an_answer_finds_room_beside_others_or_alone():
    budget = AnswerBudget(100)
    first, second = budget.answer(60), budget.answer(40)
    for num_bytes in (1, 1000):
        with pytest.raises(RequestError, match="answers of 100 bytes wait here") as refused:
            budget.answer(num_bytes)
        assert (refused.value.reason, refused.value.retryable) == ("QUEUE_FULL", True)
    first.resize(20)  # it has become smaller than it was thought to be
    with pytest.raises(RequestError):
        second.resize(81)
    assert budget.used == 60
    second.free()
    first.resize(1000)
    first.free()
    first.free()
    assert budget.used == 0
