"""What a door knows of a call besides the request itself."""

from dataclasses import dataclass
from typing import Literal

Door = Literal["grpc", "http"]


@dataclass(frozen=True, slots=True)
class Call:
    """Passed from a door to the pipeline with every request."""

    door: Door
    deadline_seconds: float | None = None
    """The call's own deadline, if it has one."""
    traceparent: str = ""
    """W3C trace context; empty: none."""
    tracestate: str = ""
    streams: bool = False
    """The answer is told as it comes."""
