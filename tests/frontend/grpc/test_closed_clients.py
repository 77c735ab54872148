"""A client that is closed under its calls: who waits for one gets a failure, and nobody is cancelled."""

import asyncio

import pytest

from quire.proto.api import GenerateRequest, RequestError
from quire.proto.client import AsyncClient


@pytest.mark.parametrize("whole", [True, False])
def test_a_call_under_way_fails_when_its_client_is_closed(serving, whole):
    async def main():
        async with serving() as s:
            client = AsyncClient(s.target)

            async def read() -> None:
                if whole:
                    await client.generate(GenerateRequest(input="x"))
                async for _ in client.stream(GenerateRequest(input="x")):
                    pass

            reader = asyncio.create_task(read())
            submit = await s.scheduler.submitted()
            s.scheduler.outputs(submit.number, [(0, 0, 70)])
            await client.close()
            with pytest.raises(RequestError, match="client was closed") as caught:
                await reader
            assert (caught.value.status, caught.value.retryable) == ("CANCELLED", False)
            await s.until(lambda: bool(s.scheduler.aborts))

    asyncio.run(main())


@pytest.mark.parametrize("whole", [True, False])
def test_a_task_that_is_cancelled_while_it_waits_is_cancelled(serving, whole):
    async def main():
        async with serving() as s:

            async def read() -> None:
                if whole:
                    await s.client.generate(GenerateRequest(input="x"))
                async for _ in s.client.stream(GenerateRequest(input="x")):
                    pass

            reader = asyncio.create_task(read())
            await s.scheduler.submitted()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await read()

    asyncio.run(main())
