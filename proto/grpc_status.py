"""Errors over gRPC: a status code with google.rpc details (error_details.proto), and back.

Details are ErrorInfo (reason, domain, metadata), BadRequest (the field), RetryInfo and RequestInfo; together they stay
under 4 KiB, so they fit the metadata limit of every peer.
"""

from collections.abc import Iterable
from typing import cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from quire.proto.api import RequestError
from quire.proto.messages.errors import StatusName

DOMAIN = "quire"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

Trailers = tuple[tuple[str, str | bytes], ...]
Answer = tuple[grpc.StatusCode, str, Trailers]
"""Code, message and trailers, as `context.abort` takes them."""


def to_status(error: RequestError) -> Answer:
    """Code, details text and trailing metadata of an error."""
    code = grpc.StatusCode[error.status]
    status = status_pb2.Status(code=cast("tuple[int, str]", code.value)[0], message=error.message)
    metadata = {**error.metadata, "retryable": "true" if error.retryable else "false"}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message, reason=error.reason
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.request_id:
        status.details.add().Pack(error_details_pb2.RequestInfo(request_id=error.request_id))
    trailers: list[tuple[str, str | bytes]] = []
    if error.retry_after_seconds > 0:
        milliseconds = max(1, round(error.retry_after_seconds * 1000))
        delay = Duration()
        delay.FromMilliseconds(milliseconds)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        trailers.append((PUSHBACK_KEY, str(milliseconds)))
    trailers.append((DETAILS_KEY, status.SerializeToString()))
    return code, error.message, tuple(trailers)


def from_status(code: grpc.StatusCode, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> RequestError:
    """The error a server meant. A status without details (the transport's own) has an empty reason."""
    reason, field, request_id, retry_after, metadata = "", "", "", 0.0, {}
    for key, value in trailers:
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except DecodeError:
            continue
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        about = error_details_pb2.RequestInfo()
        retry = error_details_pb2.RetryInfo()
        for detail in status.details:
            if detail.Unpack(info):
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(bad) and bad.field_violations:
                field = bad.field_violations[0].field
            elif detail.Unpack(about):
                request_id = about.request_id
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.ToMilliseconds() / 1000
    return RequestError(
        reason,
        details,
        field=field,
        retry_after_seconds=retry_after,
        request_id=request_id,
        status=cast("StatusName", code.name),
        metadata=metadata,
    )
