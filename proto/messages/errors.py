"""The closed list of machine-readable reasons why an output was rejected or failed, and what each means to a client."""

from typing import Final, Literal, NamedTuple

Status = Literal[
    "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED",
    "UNAUTHENTICATED", "PERMISSION_DENIED", "ABORTED",
]  # fmt: skip


class Meaning(NamedTuple):
    """What a reason tells a client."""

    status: Status
    http: int
    retryable: bool


REASONS: Final[dict[str, Meaning]] = {
    "INVALID_PARAMETER": Meaning("INVALID_ARGUMENT", 400, False),
    "TOKEN_OUT_OF_RANGE": Meaning("INVALID_ARGUMENT", 400, False),
    "EMPTY_PROMPT": Meaning("INVALID_ARGUMENT", 400, False),
    "CONTEXT_LENGTH_EXCEEDED": Meaning("INVALID_ARGUMENT", 400, False),
    "EXCEEDS_CAPACITY": Meaning("INVALID_ARGUMENT", 400, False),
    "UNKNOWN_FIELD": Meaning("INVALID_ARGUMENT", 400, False),
    "UNSUPPORTED": Meaning("INVALID_ARGUMENT", 400, False),
    "INVALID_GRAMMAR": Meaning("INVALID_ARGUMENT", 400, False),
    "GRAMMAR_FAILED": Meaning("INVALID_ARGUMENT", 400, False),
    "UNKNOWN_MODEL": Meaning("NOT_FOUND", 404, False),
    "UNKNOWN_ADAPTER": Meaning("NOT_FOUND", 404, False),
    "UNKNOWN_REQUEST": Meaning("NOT_FOUND", 404, False),
    "UNAUTHENTICATED": Meaning("UNAUTHENTICATED", 401, False),
    "PERMISSION_DENIED": Meaning("PERMISSION_DENIED", 403, False),
    "QUEUE_FULL": Meaning("RESOURCE_EXHAUSTED", 429, True),
    "TOO_MANY_STREAMS": Meaning("RESOURCE_EXHAUSTED", 429, True),
    "SLOW_READER": Meaning("RESOURCE_EXHAUSTED", 429, False),
    "STARTING": Meaning("UNAVAILABLE", 503, True),
    "DRAINING": Meaning("UNAVAILABLE", 503, True),
    "RECOVERING": Meaning("UNAVAILABLE", 503, True),
    "FAILED": Meaning("UNAVAILABLE", 503, False),
    "SCHEDULER_LOST": Meaning("UNAVAILABLE", 503, True),
    "DEADLINE": Meaning("DEADLINE_EXCEEDED", 504, False),
    "CANCELLED": Meaning("CANCELLED", 499, False),
    "NUMERICAL": Meaning("INTERNAL", 500, False),
    "POISON_REQUEST": Meaning("INTERNAL", 500, False),
    "BUG": Meaning("INTERNAL", 500, False),
}
"""Reason -> gRPC status name, HTTP code, whether the same request may be sent again."""
