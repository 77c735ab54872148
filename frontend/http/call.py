"""The properties of an HTTP request besides its body."""

from starlette.requests import Request

from quire.frontend.call import Call
from quire.frontend.http.decoding.ignored import note


def request_id(request: Request) -> str:
    """The request's label: its `x-request-id` header, or a new one, which the answer's header shows."""
    label: str = request.scope["state"]["request_id"]
    return label


def tenant(request: Request) -> str:
    """See `Call.tenant`."""
    name: str = request.scope["state"]["tenant"]
    return name


def call_of(request: Request, streams: bool | None = False, max_tokens_is_bound: bool = False) -> Call:
    """The call as the pipeline takes it."""
    headers = request.headers
    return Call(
        "http",
        traceparent=headers.get("traceparent", ""),
        tracestate=headers.get("tracestate", ""),
        tenant=tenant(request),
        streams=bool(streams),
        max_tokens_is_bound=max_tokens_is_bound,
        note=note,
    )
