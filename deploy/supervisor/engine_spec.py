"""What a supervisor is told: which processes make an engine, and how long everything may take."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Every bound of the supervisor, in seconds."""

    startup: float = 600.0
    drain: float = 45.0
    drain_margin: float = 5.0
    """Beyond the drain, for the scheduler's word that it is over."""
    farewell: float = 5.0
    """For the last replies once the engine has failed."""
    stop_grace: float = 5.0
    stop_tier: float = 2.0
    silence: float = 10.0
    """Without a beat, the scheduler counts as hung. Frontends miss it 3 s later than it fell silent and then wait 15 s
    for another one: so much less that one can be there in time.
    """
    frontend_silence: float = 20.0
    """Without a turn of its event loop, a frontend counts as hung. Longer than any work that holds the loop, and than
    the lease its requests lose meanwhile: one that is only busy gets those back.
    """
    first_sign: float = 120.0
    """The same for one that was restarted and has not said anything yet."""
    progress: float = 5.0
    tick: float = 0.2
    restart_window: float = 300.0
    first_pause: float = 1.0
    max_restarts: int = 3


class EngineSpec(Protocol):
    """What to run. The supervisor knows no configuration."""

    world_size: int
    num_frontends: int

    def scheduler_command(self) -> list[str]:
        """Command line; called before each start, so that a stale socket can be removed."""
        ...

    def worker_command(self, rank: int, epoch: int) -> list[str]: ...

    def frontend_command(self, index: int) -> list[str]:
        """Command line; forgets that an earlier process of this index was ready."""
        ...

    def frontend_ready(self, index: int) -> bool:
        """Whether it would take a request."""
        ...

    def frontend_heartbeat(self, index: int) -> int:
        """A number that changes with every turn of its event loop, about once a second; 0 before the first."""
        ...

    def supervisor_address(self) -> str: ...
