"""A request's JSON body: bounded while it arrives, decoded by msgspec, refused with the path of what is wrong."""

import asyncio
import gc
import json
import re
import time
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from quire.frontend.config import FrontendConfig
from quire.frontend.http.errors import HttpError
from quire.proto.params import ParameterError

T = TypeVar("T")

MIN_BYTES_PER_SECOND = 4096
"""What a body must bring on average once `header_seconds` have passed."""
LARGE_BYTES = 32 << 10
"""A body of this size is decoded beside the event loop."""
JSON_TYPE = re.compile(r'application/json\s*(;\s*charset="?utf-8"?\s*)?', re.IGNORECASE)
PATH = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
ONLY_NULL = "Expected `null`"
"""A field declared as None is known to us and not offered."""


async def read(request: Request, kind: type[T]) -> T:
    """The body as a value of `kind`, a msgspec Struct that forbids unknown fields.

    Raises `HttpError` for size, time and media type, `ParameterError` for contents, naming the JSON path. A field of
    `kind` whose type is None is answered with UNSUPPORTED when it is set.
    """
    raw = await read_bytes(request)
    if len(raw) < LARGE_BYTES:
        return decode(raw, kind)
    return await asyncio.to_thread(decode, raw, kind)  # a long prompt must not hold up the streams of others


async def read_bytes(request: Request) -> bytes:
    """The raw body. Raises `HttpError`."""
    config: FrontendConfig = request.scope["state"]["config"]
    headers = request.headers
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        message = "the body must not be compressed; send it without Content-Encoding"
        raise HttpError(415, "unsupported_media_type", message, {"accept-encoding": "identity"})
    if not JSON_TYPE.fullmatch(headers.get("content-type", "").strip()):
        raise HttpError(415, "unsupported_media_type", "the body must be JSON; send Content-Type: application/json")
    limit = config.max_receive_bytes
    if int(headers.get("content-length", "0")) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size, begin = 0, time.monotonic()
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(config.header_seconds):
                piece = await anext(stream, None)
            if piece is None:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            if time.monotonic() - begin > config.header_seconds + size / MIN_BYTES_PER_SECOND:
                raise TimeoutError
    except TimeoutError:
        message = f"the body stalled: {size} bytes came in {time.monotonic() - begin:.0f} s"
        raise HttpError(408, "request_timeout", message, {"connection": "close"}) from None
    except ClientDisconnect:
        raise asyncio.CancelledError from None


def decode(raw: bytes, kind: type[T]) -> T:
    """Raises `ParameterError`."""
    gc.disable()  # millions of small lists are no garbage, and looking through them again and again takes seconds
    try:
        return _decode(raw, kind)
    finally:
        gc.enable()


def _decode(raw: bytes, kind: type[T]) -> T:
    try:
        value = msgspec.json.decode(raw, type=kind)
        json.loads(raw, object_pairs_hook=_refuse_duplicates)
        return value
    except ParameterError:
        raise
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    except UnicodeDecodeError:
        raise ParameterError("body", f"is not valid UTF-8 at byte {_first_wrong_byte(raw)}") from None
    except msgspec.DecodeError as error:
        raise ParameterError("body", f"is not valid JSON: {error}") from None
    except RecursionError:
        raise ParameterError("body", "is nested too deeply") from None
    except ValueError:  # of the second look only: an integer of thousands of digits in a field that is kept as it is
        raise ParameterError("body", "contains a number that is too long") from None


def _first_wrong_byte(raw: bytes) -> int:
    """The parser itself counts from the start of a string."""
    try:
        return len(raw.decode())
    except UnicodeDecodeError as error:
        return error.start


def _wrong(text: str) -> ParameterError:
    """msgspec's words in ours."""
    path = ""
    if match := PATH.search(text):
        text, path = text[: match.start()], match.group(1)
    if match := UNKNOWN_FIELD.fullmatch(text):
        name = f"{path}.{match.group(1)}" if path else match.group(1)
        return ParameterError(name[:128], "is unknown to this server; remove it", "UNKNOWN_FIELD")
    if match := MISSING_FIELD.fullmatch(text):
        return ParameterError(f"{path}.{match.group(1)}" if path else match.group(1), "is missing")
    if text.startswith(ONLY_NULL):
        return ParameterError(path, "is not supported by this server; remove it", "UNSUPPORTED")
    return ParameterError(path or "body", text[:1].lower() + text[1:])


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ParameterError(twice[:128] or "body", "is given twice in the same object")


def _too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body is larger than {limit} bytes")
