"""The one peer of a bench's own engine: it may prepare requests as long as it likes, and is not taken for dead."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from quire.deploy.bench.peer import start_engine
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import resolve
from quire.deploy.supervisor.rundir import RunDir
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.peers.leases import Leases

PREPARATION_SECONDS = 3600


class Commands:
    """In the place of the processes: nothing is started."""

    def __init__(self) -> None:
        self.run_dir = RunDir("")
        self.by_role: dict[str, list[str]] = {}

    def start(self, role: str, index: int, command: list[str]) -> SimpleNamespace:
        self.by_role[role] = command
        return SimpleNamespace(pid=0)


@pytest.fixture
def scheduler() -> Iterator[SchedulerConfig]:
    """The configuration of a bench's scheduler."""
    processes = Commands()
    start_engine(processes, ServeOptions(), resolve("", "auto", processes.run_dir.path))
    yield msgspec.json.decode(Path(processes.by_role["scheduler"][-1]).read_bytes(), type=SchedulerConfig)
    processes.run_dir.close()


def test_a_peer_that_prepares_its_next_requests_keeps_its_lease(scheduler: SchedulerConfig) -> None:
    leases = Leases(scheduler.frontend_lease_seconds)
    leases.join(b"bench", "frontend", 0.0)
    assert [leases.expired(float(second)) for second in range(PREPARATION_SECONDS)] == [[]] * PREPARATION_SECONDS
    assert leases.touch(b"bench", PREPARATION_SECONDS)
