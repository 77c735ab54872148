"""What all connections of the HTTP door share: their bound, and who is silent for how long."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics

MAX_LINGERING = 16
"""Refused connections beyond the bound that may hear why in peace; more of them must not take up the descriptors."""


@dataclass(slots=True)
class Bounds:
    config: FrontendConfig
    max_connections: int
    metrics: Metrics
    is_closing: bool = False
    silent: dict[Hashable, Callable[[], object]] = field(default_factory=dict)
    """Connections that have asked nothing, or have been answered, and how each is closed: the longest silent first."""

    def make_room(self) -> bool:
        """Close the connection that was silent longest. False when all are busy."""
        if not self.silent:
            return False
        close = self.silent.pop(next(iter(self.silent)))
        close()
        self.metrics.count("connections_closed_total", (("door", "http"),))
        return True
