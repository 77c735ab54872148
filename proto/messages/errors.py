"""The closed list of machine-readable reasons why an output was rejected or failed, and what each means to a client."""

from typing import Final, Literal, NamedTuple

StatusName = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "CANCELLED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "ABORTED",
]


class Reason(NamedTuple):
    """Meaning of one reason word to a client."""

    status: StatusName
    http: int
    retryable: bool


REASONS: Final[dict[str, Reason]] = {
    "INVALID_PARAMETER": Reason("INVALID_ARGUMENT", 400, False),
    "TOKEN_OUT_OF_RANGE": Reason("INVALID_ARGUMENT", 400, False),
    "EMPTY_PROMPT": Reason("INVALID_ARGUMENT", 400, False),
    "CONTEXT_LENGTH_EXCEEDED": Reason("INVALID_ARGUMENT", 400, False),
    "EXCEEDS_CAPACITY": Reason("INVALID_ARGUMENT", 400, False),
    "UNKNOWN_FIELD": Reason("INVALID_ARGUMENT", 400, False),
    "UNSUPPORTED": Reason("INVALID_ARGUMENT", 400, False),
    "INVALID_GRAMMAR": Reason("INVALID_ARGUMENT", 400, False),
    "GRAMMAR_FAILED": Reason("INVALID_ARGUMENT", 400, False),
    "INVALID_MEDIA": Reason("INVALID_ARGUMENT", 400, False),
    "UNKNOWN_MODEL": Reason("NOT_FOUND", 404, False),
    "UNKNOWN_ADAPTER": Reason("NOT_FOUND", 404, False),
    "UNKNOWN_REQUEST": Reason("NOT_FOUND", 404, False),
    "UNKNOWN_MEDIA": Reason("NOT_FOUND", 404, False),
    "UNAUTHENTICATED": Reason("UNAUTHENTICATED", 401, False),
    "PERMISSION_DENIED": Reason("PERMISSION_DENIED", 403, False),
    "QUEUE_FULL": Reason("RESOURCE_EXHAUSTED", 429, True),
    "TOO_MANY_STREAMS": Reason("RESOURCE_EXHAUSTED", 429, True),
    "SLOW_READER": Reason("RESOURCE_EXHAUSTED", 429, False),
    "STARTING": Reason("UNAVAILABLE", 503, True),
    "DRAINING": Reason("UNAVAILABLE", 503, True),
    "RECOVERING": Reason("UNAVAILABLE", 503, True),
    "FAILED": Reason("UNAVAILABLE", 503, False),
    "SCHEDULER_LOST": Reason("UNAVAILABLE", 503, True),
    "MEDIA_LOST": Reason("UNAVAILABLE", 503, True),
    "DEADLINE": Reason("DEADLINE_EXCEEDED", 504, False),
    "CANCELLED": Reason("CANCELLED", 499, False),
    "NUMERICAL": Reason("INTERNAL", 500, False),
    "POISON_REQUEST": Reason("INTERNAL", 500, False),
    "BUG": Reason("INTERNAL", 500, False),
}
"""Reason -> gRPC status name, HTTP code, whether the same request may be sent again."""
