"""What a client may know of an exception, whatever door it came through."""

import logging
import uuid

from google.protobuf.message import DecodeError

from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError

log = logging.getLogger("quire.frontend")


def as_request_error(error: Exception) -> RequestError:
    """What a client may know of an exception. A bug becomes an opaque id; its traceback goes to the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ParameterError):
        return RequestError(error.reason, str(error), field=error.field)
    if isinstance(error, DecodeError):
        return RequestError("INVALID_PARAMETER", "the request is not a message of this method: malformed protobuf")
    error_id = uuid.uuid4().hex
    log.error("internal error %s", error_id, exc_info=error)
    return RequestError("BUG", f"internal error {error_id}", metadata={"error_id": error_id})
