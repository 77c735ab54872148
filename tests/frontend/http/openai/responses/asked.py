"""Calls of /v1/responses, and the events of a streamed one."""

import asyncio
import json

PATH = "/v1/responses"


def run(main) -> None:
    asyncio.run(main())


async def ask(w, **fields):
    return await w.client.post(PATH, json={"input": "hello", **fields})


def events(text: str) -> list[dict[str, object]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert found[-1]["type"] == name.removeprefix("event: ")
    return found
