"""The deployment's `max_tokens` of a request that has none, at every door; a request's own goes before it."""

import asyncio

import pytest

from quire.frontend.config import SamplingOverrides
from quire.proto.api import Chat, ChatMessage, GenerateRequest

USER = {"role": "user", "content": "hello"}
DOORS = {
    "/v1/completions": ({"prompt": "hello"}, "max_tokens"),
    "/v1/chat/completions": ({"messages": [USER]}, "max_completion_tokens"),
    "/v1/responses": ({"input": "hello"}, "max_output_tokens"),
    "/completion": ({"prompt": "hello"}, "n_predict"),
    "/infill": ({"input_prefix": "he"}, "n_predict"),
    "/inference/v1/generate": ({"token_ids": [1, 2]}, "sampling_params.max_tokens"),
    "/api/generate": ({"prompt": "hello", "raw": True}, "options.num_predict"),
    "/api/chat": ({"messages": [USER]}, "options.num_predict"),
}


def asked(door: str, number: int | None) -> dict[str, object]:
    body, field = DOORS[door]
    section, _, name = field.rpartition(".")
    said = {} if number is None else {name: number}
    return {"model": "tiny", **body, **({section: said} if section else said)}


@pytest.mark.parametrize("stated", [9, 10_000])
def test_a_deployments_number_counts_at_every_door_as_far_as_there_is_room(web, stated):
    async def main():
        async with web(override_generation_config=SamplingOverrides(max_new_tokens=stated)) as w:
            w.answers([75])
            for door in DOORS:
                for own in (None, 5):
                    response = await w.client.post(door, json=asked(door, own))
                    assert response.status_code == 200, (door, response.text)
                    submit = w.scheduler.submits[-1]
                    room = 512 - len(submit.prompt) // 4
                    wanted = own or min(stated, room)
                    assert submit.params.max_tokens == wanted, door
            for source in ("hello", Chat((ChatMessage("user", "hello"),))):
                await w.serving.client.generate(GenerateRequest(input=source))
                submit = w.scheduler.submits[-1]
                assert submit.params.max_tokens == min(stated, 512 - len(submit.prompt) // 4)
            props = (await w.client.get("/props")).json()
            assert props["default_generation_settings"]["params"]["n_predict"] == stated

    asyncio.run(main())
