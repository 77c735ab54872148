"""A streamed response in the background, taken up by any client at any of its events, at any frontend."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from quire.frontend.http.openai.responses.event_log import STORE_SECONDS, EventLog, ends_stream, unpacked
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.frontend.http.sse import data
from quire.proto.api import RequestError


async def follow(store: ResponseStore, log: EventLog | None, id: str, after: int) -> AsyncGenerator[bytes, None]:
    """The server-sent items of response `id` behind event number `after`, to the one that ends it.

    `log`: where it is made by this frontend. Raises `RequestError` when it is deleted meanwhile, `ParameterError` when
    the next event was dropped.
    """
    while True:
        if log is not None:
            async for items in log.follow(after):
                after += len(items)
                yield b"".join(items)
                if ends_stream(items[-1]):
                    return
        stored, pieces = await store.events(id, after)
        items, is_whole = await asyncio.to_thread(unpacked, pieces, after)
        after += len(items)
        if items:
            yield b"".join(items)
        if is_whole:
            return
        if items:
            continue  # there may be more of them
        if stored.status != "in_progress":  # cancelled, or its frontend is gone: nobody has told its end
            last = {"type": "response.failed", "sequence_number": after + 1, "response": msgspec.Raw(stored.shown)}
            yield data(last, "response.failed")
            return
        await asyncio.sleep(STORE_SECONDS)


def failed(error: RequestError, request_id: str) -> bytes:
    """The last item of a stream that cannot be followed further."""
    event = {"type": "error", "code": error.reason.lower(), "message": error.message, "param": error.field or None}
    return data(event, "error")
