"""Refusals repeat no more than the beginning of what a client sent, at every door and in every vendor's shape."""

import asyncio

import pytest

from quire.proto.api import RequestError
from quire.proto.api.failure import MAX_MESSAGE

DIGITS, NAME = "7" * 4000, "x" * 6000
BODIES = {
    "/v1/completions": '"prompt":"hello"',
    "/v1/chat/completions": '"messages":[{"role":"user","content":"hi"}]',
    "/v1/messages": '"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":3',
    "/v1/responses": '"input":"hello","store":false',
}
ASKED = [
    (f'"top_k":{DIGITS}', "top_k: must be an integer in [0, 9223372036854775807], got 777"),
    (f'"top_k":{DIGITS}{DIGITS}', "top_k: integer value out of range"),
    (f'"allowed_token_ids":[{DIGITS}]', "at index 0 is outside [0, "),
    (f'"n_predict":{DIGITS},"num_predict":5', "; set only one of them"),
    (f'"logit_bias":{{"{NAME}":"b"}}', "logit_bias[...]: expected `float`"),
]


@pytest.mark.parametrize("path", BODIES)
def test_a_refusal_shows_the_beginning_of_a_long_value_and_the_remedy(web, path):
    async def main():
        async with web() as w:
            for fields, message in ASKED:
                body = "{" + ",".join((BODIES[path], fields)) + "}"
                answer = await w.client.post(path, content=body, headers={"content-type": "application/json"})
                assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text
                assert len(answer.content) < 400

    asyncio.run(main())


def test_what_nobody_bounded_is_cut():
    error = RequestError("INVALID_PARAMETER", NAME, field=NAME)
    assert error.message == error.field == "x" * (MAX_MESSAGE - 3) + "..."
    assert RequestError("INVALID_PARAMETER", error.message).message == error.message  # as clients read it again
