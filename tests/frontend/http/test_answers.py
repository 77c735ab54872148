"""Large answers: the same bytes, written in short steps, none of which keeps streams waiting."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from quire.frontend.http import answer
from quire.frontend.http.answer import LARGE_BYTES, STEP, STEP_BYTES, LargeResponse, json_answer, json_list
from quire.frontend.limits.answer_budget import AnswerBudget
from quire.frontend.limits.work_pool import WorkPool
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


@pytest.fixture
def context():
    """The part of a frontend that answers need: a thread that writes them, and their bytes."""
    made = SimpleNamespace(answers=WorkPool("answers", 1), answer_budget=AnswerBudget(4 * STEP_BYTES))
    yield made
    made.answers.close()


def test_what_routes_make_of_large_answers_leaves_in_pieces(context):
    text, pieces = "a" * 2 * STEP_BYTES, []

    async def send(message):
        held.append(context.answer_budget.used)
        pieces.append(message.get("body", b""))

    async def answered():
        await (await json_answer(context, LARGE_BYTES, lambda: text))({}, None, send)

    held = []
    asyncio.run(answered())
    assert msgspec.json.decode(b"".join(pieces)) == text
    assert max(map(len, pieces)) <= STEP_BYTES
    assert set(held) == {len(text) + 2}  # what it came to be, until the last of it has left
    assert context.answer_budget.used == 0


@pytest.mark.parametrize(("size", "error"), [(3 * STEP_BYTES, RequestError), (None, TypeError)])
def test_an_answer_that_does_not_come_about_holds_nothing(size, error, context):
    other = context.answer_budget.answer(2 * STEP_BYTES)
    with pytest.raises(error):  # it became larger than there is room for, or could not be made
        asyncio.run(json_answer(context, LARGE_BYTES, lambda: "a" * size))
    assert context.answer_budget.used == other.held


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


@pytest.mark.parametrize("width", [2, STEP // 3, STEP, 5 * STEP])
def test_a_list_of_lists_is_encoded_in_steps_of_numbers(width, monkeypatch):
    encode, most = answer._encode, 0

    def counted(items):
        nonlocal most
        most = max(most, sum(map(len, items)))
        return encode(items)

    monkeypatch.setattr(answer, "_encode", counted)
    rows = [[number] * width for number in range(300)]
    assert msgspec.json.decode(json_list(rows, width)) == rows
    assert most <= max(STEP, width)
