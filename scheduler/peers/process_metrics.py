"""Metrics that the core cannot see: of the process, its sockets and its peers."""

import os
from pathlib import Path

from quire.proto.messages.introspection import Figure
from quire.proto.messages.plans import WorkerMessage
from quire.proto.messages.requests import FrontendMessage
from quire.proto.transport.channel import Router
from quire.scheduler.peers.expert_load import ExpertLoad
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.worker_group import WorkerGroup
from quire.scheduler.state.epoch import Epoch

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_metrics(
    frontends: Router[FrontendMessage],
    workers: Router[WorkerMessage],
    leases: Leases,
    group: WorkerGroup,
    group_epoch: Epoch | None,
    experts: ExpertLoad,
    now: float,
) -> tuple[Figure, ...]:
    """The metrics that `MetricsReply` has beside the core's own. Those of a group end with its epoch."""
    is_alive = group_epoch is not None and group_epoch.epoch == group.epoch
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
        *experts.figures(now),
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
