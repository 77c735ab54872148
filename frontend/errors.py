"""Errors for clients: the texts that several places use, and what a client may know of any exception."""

import logging
import uuid
from collections.abc import Iterable
from itertools import islice

from google.protobuf.message import DecodeError

from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError
from quire.proto.process.control_group import thread_limits

SHOWN_NAME = 64
"""Characters of a client's name for something that an error repeats."""
SHOWN_MODELS = 3

NO_THREAD = "can't start new thread"
"""The words of Python's error where a limit of processes and threads is reached."""

log = logging.getLogger("quire.frontend")


def unknown_model(name: str, served: Iterable[str]) -> RequestError:
    """`served`: the names that requests may give, of which the first ones are said."""
    shown = ", ".join(repr(one[:SHOWN_NAME]) for one in islice(served, SHOWN_MODELS))
    message = f"model {name[:SHOWN_NAME]!r} is not served here; send {shown}, or a name that /v1/models lists"
    return RequestError("UNKNOWN_MODEL", message, field="model")


def engine_starting() -> RequestError:
    return RequestError("STARTING", "the engine is starting: no worker is ready yet", retry_after_seconds=1.0)


def empty_prompt(field: str) -> ParameterError:
    return ParameterError(field, "is empty; at least one token is needed", "EMPTY_PROMPT")


def too_many_entries(field: str, count: int, most: int) -> ParameterError:
    return ParameterError(field, f"has {count} entries; at most {most} are allowed")


def not_supported(field: str) -> ParameterError:
    return ParameterError(field, "is not supported by this server; remove it", "UNSUPPORTED")


def as_request_error(error: Exception) -> RequestError:
    """The error that a client gets for an exception. A bug becomes an opaque id; its traceback goes to the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ParameterError):
        return RequestError(error.reason, str(error), field=error.field)
    if isinstance(error, DecodeError):
        return RequestError("INVALID_PARAMETER", "the request is not a message of this method: malformed protobuf")
    if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        limits = "; ".join(limit.words for limit in thread_limits()) or "no limit is known"
        log.error("no thread can be started any more: %s", limits)
        message = "the server has no thread left for this request, which is not at fault; send it again"
        return RequestError("RECOVERING", message, retry_after_seconds=1.0)
    error_id = uuid.uuid4().hex
    log.error("internal error %s", error_id, exc_info=error)
    return RequestError("BUG", f"internal error {error_id}", metadata={"error_id": error_id})
