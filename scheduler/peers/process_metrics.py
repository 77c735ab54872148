"""Figures the core cannot see: of the process, its sockets and its peers."""

import os
from pathlib import Path

from quire.proto.messages.introspection import Figure
from quire.proto.messages.plans import WorkerMessage
from quire.proto.messages.requests import FrontendMessage
from quire.proto.transport.channel import Router
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.worker_group import WorkerGroup
from quire.scheduler.state.epoch import Era

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def outside(
    frontends: Router[FrontendMessage],
    workers: Router[WorkerMessage],
    leases: Leases,
    group: WorkerGroup,
    era: Era | None,
) -> tuple[Figure, ...]:
    """What comes along with the core's own figures. The group's end with its `era`."""
    is_alive = era is not None and era.epoch == group.epoch
    phases = (
        Figure("startup_phase_seconds", seconds, (("phase", phase), ("rank", str(rank))))
        for rank, phase, seconds in (group.all_phases if is_alive else ())
    )
    memory = (
        Figure("device_memory_bytes", num_bytes, (("kind", kind), ("rank", str(rank))))
        for rank, kind, num_bytes in (group.memory if is_alive else ())
    )
    return (
        Figure("bad_frames_total", frontends.num_bad_frames, (("socket", "frontends"),)),
        Figure("bad_frames_total", workers.num_bad_frames, (("socket", "workers"),)),
        Figure("frontends_connected", leases.num_frontends),
        Figure("scheduler_resident_memory_bytes", _resident_bytes()),
        *phases,
        *memory,
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
