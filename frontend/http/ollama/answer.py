"""Parts that Ollama's answers share: lines of JSON, times, names of models, errors."""

import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from quire.frontend.context import FrontendContext
from quire.frontend.errors import unknown_model
from quire.frontend.http.errors import HttpError
from quire.frontend.http.sse import StreamKind, event_stream
from quire.proto.api import RequestError

Json = dict[str, Any]

LATEST = ":latest"
"""The tag of a model whose name has none."""
NANOSECONDS = 1_000_000_000

_encode = msgspec.json.Encoder().encode


def served_name(context: FrontendContext, name: str) -> str:
    """The served name that is meant; `name:latest` is `name`. Raises `RequestError` (NOT_FOUND)."""
    names = context.engine_info.server_info().model_names
    found = next((one for one in (name, name.removesuffix(LATEST)) if one in names), None)
    if found is None:
        raise unknown_model(name, names)
    return found


def tagged(name: str) -> str:
    """The name as Ollama lists it, with a tag."""
    return name if ":" in name else name + LATEST


def now_text() -> str:
    return time_text(time.time())


def time_text(seconds: float) -> str:
    """The time in RFC 3339, of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def line(item: Json) -> bytes:
    """One object of a stream."""
    return _encode(item) + b"\n"


def json_lines(lines: AsyncGenerator[bytes, None], waiting: Json) -> Response:
    """Stream `lines`; `waiting` is an object without content, sent when nothing else was for a while."""
    return event_stream(lines, error_line, StreamKind(b"application/x-ndjson", line(waiting)))


def error_line(error: RequestError, request_id: str) -> bytes:
    """The last line of a stream that failed."""
    return line(error_body(error, request_id))


def error_body(error: RequestError | HttpError, request_id: str) -> Json:
    """The JSON object of an error in Ollama's shape. The request's id is in the header `x-request-id`."""
    return {"error": error.message}
