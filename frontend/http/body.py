"""A request's JSON body: bounded while it arrives, scanned, decoded by msgspec, refused with the path of a mistake.

Large bodies are worked on in threads of their own (`WorkPool`).
"""

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from quire.frontend.config import FrontendConfig
from quire.frontend.http.decoding.decode import decode
from quire.frontend.http.errors import HttpError
from quire.frontend.limits.byte_budget import RETRY_SECONDS, body_size, current_body
from quire.frontend.limits.json_scan import scan
from quire.frontend.limits.work_pool import IsStopped, WorkPool
from quire.proto.api import RequestError

T = TypeVar("T")
R = TypeVar("R")

MIN_BYTES_PER_SECOND = 4096
"""Rate at which a body must arrive on average once `header_seconds` have passed."""
UNTYPED = "/api/"
"""Begin of Ollama's paths, whose callers name no media type: curl then says a form's. `Origins` keeps pages out."""
JSON_TYPE = re.compile(r'application/json\s*(;\s*charset="?utf-8"?\s*)?', re.IGNORECASE)


async def read(request: Request, kind: type[T]) -> T:
    """The body as a value of `kind`, a msgspec Struct that forbids unknown fields: `decode` says what becomes of them.

    Raises `HttpError` for size, time and media type, `ParameterError` for contents, naming the JSON path,
    `RequestError` when too many bytes are being read. A field of `kind` whose type is None is answered with
    UNSUPPORTED when it is set.
    """
    pieces = await _read_pieces(request)

    def look(is_stopped: IsStopped) -> T:
        raw = b"".join(pieces)  # a large one takes milliseconds, mostly for fresh pages, without Python's lock
        pieces.clear()
        scan(raw, "body", is_stopped=is_stopped)
        return decode(raw, kind)

    return await _pool(request).run(sum(map(len, pieces)), look)


async def beside(request: Request, function: Callable[[], R]) -> R:
    """`function()`, whose time grows with the body: not on the event loop when that is large."""
    return await _pool(request).run(body_size(), lambda _: function())


def _pool(request: Request) -> WorkPool:
    pool: WorkPool = request.scope["state"]["bodies"]
    return pool


async def _read_pieces(request: Request) -> list[bytes]:
    """The raw body as it arrives. Raises `HttpError` or `RequestError`."""
    config: FrontendConfig = request.scope["state"]["config"]
    headers = request.headers
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        message = "the body must not be compressed; send it without Content-Encoding"
        raise HttpError(415, "unsupported_media_type", message, {"accept-encoding": "identity"})
    is_json = JSON_TYPE.fullmatch(headers.get("content-type", "").strip())
    if not is_json and not request.scope["path"].startswith(UNTYPED):
        raise HttpError(415, "unsupported_media_type", "the body must be JSON; send Content-Type: application/json")
    limit = config.max_receive_bytes
    if int(headers.get("content-length", "0")) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    begin = time.monotonic()
    stream = request.stream()
    body = current_body()
    assert body is not None
    try:
        while True:
            async with asyncio.timeout(config.header_seconds) as timeout:
                body.give_way = partial(_end, timeout)
                piece = await anext(stream, None)
            if piece is None:
                return pieces
            pieces.append(piece)
            body.grow(len(piece))
            if body.size > limit:
                raise _too_large(limit)
            if time.monotonic() - begin > config.header_seconds + body.size / MIN_BYTES_PER_SECOND:
                raise TimeoutError
    except TimeoutError:
        if body.gave_way:
            message = "the body came too slowly while many were being read; try again"
            raise RequestError("QUEUE_FULL", message, retry_after_seconds=RETRY_SECONDS) from None
        message = f"the body stalled: {body.size} bytes came in {time.monotonic() - begin:.0f} s"
        raise HttpError(408, "request_timeout", message, {"connection": "close"}) from None
    except ClientDisconnect:
        raise asyncio.CancelledError from None
    finally:
        body.give_way = None


def _end(timeout: asyncio.Timeout) -> None:
    if not timeout.expired():
        timeout.reschedule(0.0)


def _too_large(limit: int) -> HttpError:
    message = f"the body is larger than {limit} bytes; send it in parts, or start the server with --max-body-bytes"
    return HttpError(413, "body_too_large", message)
