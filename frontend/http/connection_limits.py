"""The limits that all connections of the HTTP server share, and the connections that are idle."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics

MAX_LINGERING = 16
"""Most refused connections beyond the limit that may read why; more of them must not take up the descriptors."""


@dataclass(slots=True)
class ConnectionLimits:
    """One per HTTP server."""

    config: FrontendConfig
    max_connections: int
    metrics: Metrics
    is_closing: bool = False
    idle: dict[Hashable, Callable[[], object]] = field(default_factory=dict)
    """Connections without a request in progress -> how each is closed; the longest idle one is first."""

    def make_room(self) -> bool:
        """Close the connection that was idle longest. False when all are busy."""
        if not self.idle:
            return False
        close = self.idle.pop(next(iter(self.idle)))
        close()
        self.metrics.count("connections_closed_total", (("door", "http"),))
        return True
