"""Server-sent events: one send for everything that happened since the last one, and an honest end.

The answer starts with the first item, so that a request refused by the scheduler still gets its own status. A failure
after that is one last item with an error object, and no `[DONE]`: a stream without `[DONE]` did not end well.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.frontend.errors import as_request_error
from quire.frontend.http.errors import error_body
from quire.proto.api import RequestError

DONE = b"data: [DONE]\n\n"
LAST_WRITE_SECONDS = 1.0
QUIET_SECONDS = 15.0
"""Time without an item after which a stream gets a comment, which clients ignore: proxies close a stream that is silent
for a minute, and a restarted model loads for longer.
"""
COMMENT = b": waiting\n\n"
TURN_BYTES = 64 << 10
"""Bytes after which others have a turn: to make them takes a millisecond or two."""
HEADERS = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class StreamKind(NamedTuple):
    """The format of a stream."""

    content_type: bytes
    waiting: bytes
    """Bytes that are sent when nothing else was for a while."""


EVENTS = StreamKind(b"text/event-stream; charset=utf-8", COMMENT)

_encode = msgspec.json.Encoder().encode


def data(item: Any, event: str = "") -> bytes:
    """One item; `event` names it for clients that dispatch by name."""
    named = b"event: " + event.encode() + b"\n" if event else b""
    return b"".join((named, b"data: ", _encode(item), b"\n\n"))


async def in_turns(items: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The items joined, in parts between which others come where they are many. They are made as they are taken."""
    part: list[bytes] = []
    size = 0
    for item in items:
        part.append(item)
        size += len(item)
        if size >= TURN_BYTES:
            yield b"".join(part)
            await asyncio.sleep(0)
            part, size = [], 0
    if part:
        yield b"".join(part)


def error_item(error: RequestError, request_id: str) -> bytes:
    """The last item of a stream that failed, in OpenAI's shape."""
    return data(error_body(error, request_id))


class EventStream(Response):
    """Sends what `events` yields; each yield is one write. See `event_stream`."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], failed: Callable[[RequestError, str], bytes], kind: StreamKind
    ) -> None:
        super().__init__()
        self._kind = kind
        self._events = events
        self._failed = failed
        self._is_quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id: str = scope["state"]["request_id"]
        headers = [(b"content-type", self._kind.content_type), *HEADERS]
        started = False
        comments: asyncio.Task[None] | None = None
        try:
            try:
                async for piece in self._events:
                    if not started:
                        await send({"type": "http.response.start", "status": 200, "headers": headers})
                        started = True
                        comments = asyncio.create_task(self._comment(send))
                    self._is_quiet = False
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                _stop(comments)
                if not started:  # nothing was left to tell
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
            except asyncio.CancelledError as cancelled:
                if not cancelled.args or not isinstance(cancelled.args[0], RequestError):
                    raise  # the client is gone
                raise cancelled.args[0] from None  # the request's own stream found this reader too slow
        except Exception as error:
            if not started:
                raise
            _stop(comments)
            last = self._failed(as_request_error(error), request_id)
            with contextlib.suppress(TimeoutError):  # the connection closes all the same
                async with asyncio.timeout(LAST_WRITE_SECONDS):
                    await send({"type": "http.response.body", "body": last, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
        finally:
            _stop(comments)
            await self._events.aclose()

    async def _comment(self, send: Send) -> None:
        """Send a comment after every interval without an item, until cancelled."""
        while True:
            self._is_quiet = True
            await asyncio.sleep(QUIET_SECONDS)
            if self._is_quiet:
                await send({"type": "http.response.body", "body": self._kind.waiting, "more_body": True})


def _stop(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()


def event_stream(
    events: AsyncGenerator[bytes, None],
    failed: Callable[[RequestError, str], bytes] = error_item,
    kind: StreamKind = EVENTS,
) -> Response:
    """Stream `events`. A client that leaves, or reads too slowly, closes the generator, whose blocks then exit.

    `failed` makes the last item of a stream that breaks, for APIs whose errors have another shape. The generator must
    read its `RequestStream` in the task that iterates it: that task is the one a slow reader's stream cancels.
    """
    return EventStream(events, failed, kind)
