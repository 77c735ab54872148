"""A request or an output that failed."""

from collections.abc import Mapping
from dataclasses import dataclass

from quire.proto.messages.errors import REASONS, StatusName

MAX_MESSAGE = 600
"""Most bytes of an error's text, and of the name of its field: both may repeat what a client sent."""


class RequestError(Exception):
    """A request or an output that failed. `reason` is one of `errors.REASONS`, or empty for a transport's own error."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str = "",
        retry_after_seconds: float = 0.0,
        request_id: str = "",
        status: StatusName | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        message = _bounded(message)
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = _bounded(field)
        self.retry_after_seconds = retry_after_seconds
        self.request_id = request_id
        self.status: str = status or REASONS[reason].status
        self.metadata = dict(metadata or {})

    @property
    def retryable(self) -> bool:
        """The same request may be sent again."""
        return REASONS[self.reason].retryable if self.reason in REASONS else self.status == "UNAVAILABLE"


def _bounded(text: str) -> str:
    """The text, or as much of its beginning as fits `MAX_MESSAGE` with three points behind it."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_MESSAGE:
        return text
    return encoded[: MAX_MESSAGE - 3].decode(errors="ignore") + "..."


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """Failure of one output; `reason` is one of `errors.REASONS`."""

    reason: str
    message: str
    retryable: bool
