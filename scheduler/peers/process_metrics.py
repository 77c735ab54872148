"""Figures the core cannot see: of the process, its sockets and its peers."""

import os
from pathlib import Path

from quire.proto.messages.introspection import Figure
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.worker_group import WorkerGroup

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def outside(
    bad_frontend_frames: int, bad_worker_frames: int, leases: Leases, group: WorkerGroup | None
) -> tuple[Figure, ...]:
    """What comes along with the core's own figures; of the group only while it lives."""
    phases = (
        Figure("startup_phase_seconds", seconds, (("phase", phase), ("rank", str(rank))))
        for rank, phase, seconds in (group.all_phases if group else ())
    )
    memory = (
        Figure("device_memory_bytes", num_bytes, (("kind", kind), ("rank", str(rank))))
        for rank, kind, num_bytes in (group.memory if group else ())
    )
    return (
        Figure("bad_frames_total", bad_frontend_frames, (("socket", "frontends"),)),
        Figure("bad_frames_total", bad_worker_frames, (("socket", "workers"),)),
        Figure("frontends_connected", leases.num_frontends),
        Figure("scheduler_resident_memory_bytes", _resident_bytes()),
        *phases,
        *memory,
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
