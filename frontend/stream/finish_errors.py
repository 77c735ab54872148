"""Errors for clients out of the ends of outputs that the scheduler reports."""

import logging

from quire.proto import api
from quire.proto.api import RequestError
from quire.proto.messages.errors import REASONS
from quire.proto.messages.requests import Finish

INTERNAL_TEXTS = {
    "NUMERICAL": "the model produced numbers that are not finite for this request",
    "POISON_REQUEST": "this request was running in repeated crashes and is not run again",
}
"""Reason of an internal error -> its text for clients; any other reason is "internal error"."""

log = logging.getLogger("quire.frontend")


def finish_error(finish: Finish, request_id: str, num_tokens: int) -> RequestError | None:
    """The error of an output that ended in one. `num_tokens` is what the request has generated so far."""
    if finish.reason == "deadline":
        return stream_error("DEADLINE", finish.message or "the request's time-out passed", request_id, num_tokens)
    if not finish.error and finish.reason not in ("error", "rejected"):
        return None
    reason = finish.error if finish.error in REASONS else "BUG"
    message = finish.message or reason
    if REASONS[reason].status == "INTERNAL":
        log.error("request %r output %d: %s: %s", request_id, finish.output_index, reason, message)
        message = INTERNAL_TEXTS.get(reason, "internal error")
    return stream_error(reason, message, request_id, num_tokens, finish.field, finish.retry_after_seconds)


def stream_error(
    reason: str, message: str, request_id: str, num_tokens: int, field: str = "", retry_after_seconds: float = 0.0
) -> RequestError:
    """The error of a request that was submitted, with the number of tokens it had generated."""
    return RequestError(
        reason,
        message,
        field=field,
        retry_after_seconds=retry_after_seconds,
        request_id=request_id,
        metadata={"completion_tokens": str(num_tokens)} if num_tokens else {},
    )


def error_detail(error: RequestError | None) -> api.ErrorDetail | None:
    """The error as part of a terminal event."""
    return api.ErrorDetail(error.reason, error.message, error.retryable) if error is not None else None
