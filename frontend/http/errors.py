"""Errors over HTTP: OpenAI's shape, the right status, and never an exception's own text for a bug of ours.

`{"error": {"message", "type", "param", "code", "request_id"}}`. `code` is the reason word of `proto/messages/errors.py`
in lower case; a 429 or 503 that is worth a retry carries Retry-After, and `x-should-retry` says the same to OpenAI's
clients.
"""

import asyncio
import math
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.frontend.errors import as_request_error
from quire.frontend.http.decoding.ignored import HEADER, Ignored
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request.validate import REQUEST_ID
from quire.proto.api import RequestError
from quire.proto.messages.errors import REASONS
from quire.proto.messages.params import ParameterError

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
CODES = {404: "not_found", 405: "method_not_allowed"}
STATUS_OF = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503}


class HttpError(Exception):
    """A refusal that only HTTP knows. `code` is a lower-case word."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


ErrorBody = Callable[[RequestError | HttpError, str], dict[str, Any]]
"""The JSON object of an error, made from the error and its request's id."""


def error_body(error: RequestError, request_id: str = "") -> dict[str, Any]:
    """The JSON object of an error, also of one inside a stream."""
    return _body(status_of(error), error.reason.lower(), error.message, error.field, error.request_id or request_id)


def status_of(error: RequestError) -> int:
    if error.reason in REASONS:
        return REASONS[error.reason].http
    return STATUS_OF.get(error.status, 500)


def as_http_error(error: Exception) -> RequestError | HttpError:
    """The error that a client gets for an exception."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, HTTPException):
        message = "no such path" if error.status_code == 404 else "this path does not take this method"
        return HttpError(error.status_code, CODES.get(error.status_code, "refused"), message, error.headers)
    return as_request_error(error)


def render(error: RequestError | HttpError, request_id: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an error's answer."""
    if isinstance(error, HttpError):
        status, headers = error.status, dict(error.headers)
        body = _body(status, error.code, error.message, "", request_id)
    else:
        status, headers = status_of(error), {}
        body = error_body(error, request_id)
        if status >= 429:
            headers["x-should-retry"] = "true" if error.retryable else "false"
        if error.retryable and status in (429, 503):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds)))
        if status == 401:
            headers["www-authenticate"] = "Bearer"
    return status, headers, msgspec.json.encode(body)


def closing_response(error: HttpError) -> bytes:
    """The whole answer to a request that no route has seen, after which the connection closes."""
    status, headers, body = render(error, uuid.uuid4().hex)
    headers |= {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def _body(status: int, code: str, message: str, field: str, request_id: str) -> dict[str, Any]:
    kind = TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code, "request_id": request_id}}


class ErrorLayer:
    """The ASGI layer that gives a request its id, answers whatever is raised, and ends quietly when cancelled.

    It is cancelled when its client went away, or when a reader is too slow; nobody is left to answer.
    """

    def __init__(self, app: ASGIApp, bodies: Mapping[str, ErrorBody], metrics: Metrics) -> None:
        """`bodies`: paths at and below which errors have another shape than OpenAI's."""
        self._app = app
        self._bodies = bodies
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"]
        fits = not given or (len(given) == 1 and REQUEST_ID.fullmatch(given[0]) is not None)
        label = given[0] if given and fits else uuid.uuid4().hex

        async def labelled(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", label.encode())]
                ignored: Ignored | None = scope["state"].get("ignored")
                if ignored is not None and ignored.num_noted:
                    message["headers"].append((HEADER, ignored.header()))
                    self._metrics.count("ignored_fields_total", (), ignored.num_noted)
            await send(message)

        scope["app"] = self
        scope.setdefault("state", {})["request_id"] = label
        try:
            if not fits:
                raise ParameterError("x-request-id", "must be one header of 1 to 128 visible ASCII characters")
            await self._app(scope, receive, labelled)
        except asyncio.CancelledError:
            return
        except Exception as error:
            failure = as_http_error(error)
            if started:
                return  # the connection closes within the answer, so that no client takes it for whole
            status, headers, body = render(failure, label)
            for path, shaped in self._bodies.items():
                if scope["path"] == path or scope["path"].startswith(f"{path}/"):
                    body = msgspec.json.encode(shaped(failure, label))
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await labelled({"type": "http.response.start", "status": status, "headers": raw})
            await send({"type": "http.response.body", "body": body})
