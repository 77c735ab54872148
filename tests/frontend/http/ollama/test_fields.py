"""Every field of Ollama's requests, with values nobody should send: never an error of ours."""

import asyncio
import json

import pytest

from quire.frontend.http.ollama.chat import ChatBody, Turn
from quire.frontend.http.ollama.embed import EmbedBody, EmbeddingsBody
from quire.frontend.http.ollama.fields import Options
from quire.frontend.http.ollama.generate import GenerateBody
from quire.frontend.http.ollama.models import ShowBody

USER = {"role": "user", "content": "hello"}
BASES = {
    "/api/chat": (ChatBody, {"model": "tiny", "messages": [USER]}),
    "/api/generate": (GenerateBody, {"model": "tiny", "prompt": "hello"}),
    "/api/embed": (EmbedBody, {"model": "tiny", "input": "hello"}),
    "/api/embeddings": (EmbeddingsBody, {"model": "tiny", "prompt": "hello"}),
    "/api/show": (ShowBody, {"model": "tiny"}),
}
VALUES = (None, True, -1, 0, 1e308, "", "x\u0000", [], {}, [None], [{}], {"type": "function"}, [["a"]], 10**30)


PARTS = (0, *(pytest.param(part, marks=pytest.mark.thorough) for part in (1, 2)))
"""Of the bodies: every third one, from the first on; then the others. Each next field begins with another value."""


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("part", PARTS)
def test_no_value_of_any_field_is_our_fault(web, path, part):
    kind, base = BASES[path]
    bodies = [{**base, field: value} for field in kind.__struct_fields__ for value in VALUES]
    if path == "/api/generate":
        bodies += [{**base, "options": {field: value}} for field in Options.__struct_fields__ for value in VALUES]
    if path == "/api/chat":
        bodies += [
            {**base, "messages": [{**USER, field: value}]} for field in Turn.__struct_fields__ for value in VALUES
        ]
    bodies = bodies[part :: len(PARTS)]

    async def main():
        async with web() as w:
            w.answers([75], "stop")
            wrong = []
            for body in bodies:
                headers = {"content-type": "application/json"}
                response = await w.client.post(path, content=json.dumps(body), headers=headers)
                lines = [json.loads(line) for line in response.text.splitlines()]
                if response.status_code not in (200, 400, 404) or (
                    response.status_code != 200 and "error" not in lines[0]
                ):
                    wrong.append((body, response.status_code, response.text))
            assert wrong == []

    asyncio.run(main())
