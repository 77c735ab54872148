"""The merging of several streams into one, for a call with several prompts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from quire.proto.api import Event, RequestError

Batches = AsyncGenerator[Sequence[Event], None]


async def merged(sources: Sequence[Batches]) -> AsyncGenerator[tuple[int, Sequence[Event]], None]:
    """The batches of all sources, each with its source's index, as they come. The first failure ends all and is raised.

    At most one batch per source waits here: a reader that stands still stands still for every source, whose own rule
    for slow readers then cancels it; what it gives as the reason is raised too.
    """
    task = asyncio.current_task()
    assert task is not None
    reader: asyncio.Task[object] = task
    ready: asyncio.Queue[tuple[int, Sequence[Event] | Exception | None]] = asyncio.Queue(1)

    async def pump(index: int, source: Batches) -> None:
        try:
            async with aclosing(source):
                async for batch in source:
                    await ready.put((index, batch))
            await ready.put((index, None))
        except asyncio.CancelledError as cancelled:
            if not cancelled.args or not isinstance(cancelled.args[0], RequestError):
                raise
            reader.cancel(cancelled.args[0])
        except Exception as error:
            await ready.put((index, error))

    pumps = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    try:
        open_sources = len(sources)
        while open_sources:
            index, item = await ready.get()
            if item is None:
                open_sources -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
