"""Specification of an engine for its supervisor: command lines of its processes, and how long everything may take."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Every bound of the supervisor, in seconds."""

    startup: float = 600.0
    drain: float = 45.0
    drain_margin: float = 5.0
    """Time beyond the drain for the scheduler's `Drained`."""
    farewell: float = 5.0
    """Time for the last replies once the engine has failed."""
    stop_grace: float = 5.0
    stop_tier: float = 2.0
    silence: float = 10.0
    """Silence after which the scheduler counts as hung. Frontends miss it 3 s later than it fell silent and wait 15 s
    for another one: so much less that one can be there in time.
    """
    frontend_silence: float = 20.0
    """Silence of its event loop after which a frontend counts as hung. Longer than any work that holds the loop and
    than the lease its requests lose meanwhile: one that is only busy gets those back.
    """
    first_sign: float = 120.0
    """Longest silence of a restarted process before its first sign of life."""
    progress: float = 5.0
    tick: float = 0.2
    restart_window: float = 300.0
    first_pause: float = 1.0
    max_restarts: int = 3


class EngineSpec(Protocol):
    """Command lines and signs of life of an engine's processes. The supervisor knows no configuration."""

    world_size: int
    num_frontends: int

    def scheduler_command(self) -> list[str]:
        """Command line; called before each start, so that a stale socket can be removed."""
        ...

    def worker_command(self, rank: int, epoch: int) -> list[str]:
        """Command line; called before each start, when the groups of all other epochs are dead."""
        ...

    def frontend_command(self, index: int) -> list[str]:
        """Command line; forgets that an earlier process of this index was ready."""
        ...

    def frontend_ready(self, index: int) -> bool:
        """It would take a request."""
        ...

    def frontend_heartbeat(self, index: int) -> int:
        """A number that changes with every turn of its event loop, about once a second; 0 before the first."""
        ...

    def supervisor_address(self) -> str: ...
