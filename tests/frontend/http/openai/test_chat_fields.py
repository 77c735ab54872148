"""Every field of the three chat-like APIs, with values nobody should send: never an error of ours."""

import asyncio
import json

import pytest

from quire.frontend.http.anthropic.messages_types import MessageRequest
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.responses.types import ResponseRequest

USER = {"role": "user", "content": "hello"}
BASES = {
    "/v1/chat/completions": (ChatRequest, {"messages": [USER]}),
    "/v1/responses": (ResponseRequest, {"input": "hello"}),
    "/v1/messages": (MessageRequest, {"model": "tiny", "messages": [USER], "max_tokens": 3}),
}
VALUES = (None, True, -1, 1e308, "", "x\u0000", [], {}, [None], [{}], {"type": "function"}, [["a"]], 10**30)


PARTS = (0, *(pytest.param(part, marks=pytest.mark.thorough) for part in (1, 2)))
"""Of the values that a field gets: the first ones, one further on for each next field; then the others."""


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("part", PARTS)
def test_no_value_of_any_field_is_our_fault(web, path, part):
    kind, base = BASES[path]

    async def main():
        async with web() as w:
            w.answers([75], "stop")
            wrong = []
            for place, field in enumerate(kind.__struct_fields__):
                for value in VALUES[(place + part) % len(PARTS) :: len(PARTS)]:
                    response = await w.client.post(
                        path, content=json.dumps({**base, field: value}), headers={"content-type": "application/json"}
                    )
                    if response.status_code not in (200, 400, 404):
                        wrong.append((field, value, response.status_code, response.text))
            assert wrong == []

    asyncio.run(main())
