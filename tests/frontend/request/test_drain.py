"""A drain that begins while requests are prepared: they are taken, or end with a reason when its time is over."""

import asyncio

import pytest

from quire.frontend.request.preparer import RequestPreparer
from quire.proto.api import GenerateRequest, RequestError


@pytest.fixture
def slow(monkeypatch):
    """Preparing begins, and ends when `slow["end"]` is set."""
    prepare, events = RequestPreparer.prepare, {"begun": asyncio.Event(), "end": asyncio.Event()}

    async def prepared(self, *args, **more):
        made = await prepare(self, *args, **more)
        events["begun"].set()
        await events["end"].wait()
        return made

    monkeypatch.setattr(RequestPreparer, "prepare", prepared)
    return events


def test_what_arrived_before_the_drain_is_taken(serving, slow):
    async def main():
        async with serving() as s:
            asked = asyncio.create_task(s.client.generate(GenerateRequest(input="hello", max_tokens=1)))
            await slow["begun"].wait()
            s.scheduler.change("draining")
            await s.until(lambda: s.server.scheduler.state == "draining")
            assert s.server.pipeline.num_open == 1  # for which the process waits
            slow["end"].set()
            submit = await s.scheduler.submitted()
            assert submit.accepted
            s.scheduler.answer(submit.number, [70])
            assert list((await asked).outputs[0].token_ids) == [70]

    asyncio.run(main())


def test_what_is_not_prepared_in_time_ends_with_a_reason(serving, slow):
    async def main():
        async with serving() as s:
            asked = asyncio.create_task(s.client.generate(GenerateRequest(input="hello", max_tokens=1)))
            await slow["begun"].wait()
            s.server.pipeline.end_preparing()
            with pytest.raises(RequestError) as refused:
                await asked
            assert refused.value.reason == "DRAINING"

    asyncio.run(main())
