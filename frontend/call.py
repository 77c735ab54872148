"""The properties of a call that are not part of the request itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Door = Literal["grpc", "http"]
"""The protocol by which a call came in, as the label `door` of the metrics names it."""


@dataclass(frozen=True, slots=True)
class Call:
    """The call that a request came in, passed to the pipeline with it."""

    door: Door
    deadline_seconds: float | None = None
    """The call's own deadline, if it has one."""
    traceparent: str = ""
    """W3C trace context; empty: none."""
    tracestate: str = ""
    tenant: str = ""
    """Whose call it is, see `tenant_of`; empty: nobody showed a key."""
    streams: bool = False
    """True where the answer is sent as it is generated."""
    max_tokens_is_bound: bool = False
    """True where `max_tokens` is only an upper bound: more than there is room for is cut to the room, not refused,
    and a request without one gets the deployment's, or all the room."""
    note: Callable[[str], None] = lambda name: None
    """Tells the caller the name of what was dropped of the request."""
