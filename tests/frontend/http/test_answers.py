"""Large answers: the same bytes, written in short steps, none of which keeps streams waiting."""

import asyncio

import msgspec
import pytest

from quire.frontend.http.answer import STEP, STEP_BYTES, LargeResponse, json_list


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES, STEP_BYTES + 1, 3 * STEP_BYTES])
def test_a_large_answer_leaves_in_pieces(size):
    body = bytes(number % 251 for number in range(size))
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(LargeResponse(body)({}, None, send))
    head, *pieces = sent
    assert (b"content-length", str(size).encode()) in head["headers"]
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= STEP_BYTES
    assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]


@pytest.mark.parametrize("count", [0, 1, STEP, 2 * STEP + 1])
def test_a_list_in_steps_is_the_list(count):
    assert msgspec.json.decode(json_list(range(count))) == list(range(count))
