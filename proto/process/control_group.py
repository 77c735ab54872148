"""Limits of the control groups of this process, of version 1 and 2: of its own group and of those around it."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SYSTEM = Path("/")


def num_cores(system: Path = SYSTEM) -> int:
    """The cores that this process can keep busy: those it may run on, fewer where a quota gives it less time.

    A thread beyond the quota earns nothing: all of them stand still together once the time of a period is used up.
    """
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(system)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(system: Path = SYSTEM) -> float | None:
    """Processor seconds in a second that the tightest quota allows; None without one."""
    quotas = []
    for group in _groups("cpu", system):
        words = (_text(group / "cpu.max") or f"{_text(group / 'cpu.cfs_quota_us')} ").split()
        period = words[1] if len(words) > 1 else _text(group / "cpu.cfs_period_us")
        if words and words[0].isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(words[0]) / int(period))
    return min(quotas, default=None)


class ThreadLimit(NamedTuple):
    """A limit of processes and threads, which the kernel counts together."""

    words: str
    num_left: int


def thread_limits(system: Path = SYSTEM) -> list[ThreadLimit]:
    """The limits that bind this process: `pids.max` of its groups, and that of its user unless it is root."""
    found = []
    for group in _groups("pids", system):
        most, taken = _text(group / "pids.max"), _text(group / "pids.current")
        if most.isdecimal() and taken.isdecimal():
            found.append(ThreadLimit(f"{group}/pids.max is {most}, {taken} are taken", int(most) - int(taken)))
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and (user := os.geteuid()):
        taken_by_user = sum(map(_num_threads, _processes_of(user, system)))
        found.append(ThreadLimit(f"ulimit -u is {soft}, {taken_by_user} are taken", soft - taken_by_user))
    return found


def _processes_of(user: int, system: Path) -> Iterator[Path]:
    for process in (system / "proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            if process.stat().st_uid == user:
                yield process


def _num_threads(process: Path) -> int:
    try:
        return len(os.listdir(process / "task"))
    except OSError:
        return 0


def _groups(controller: str, system: Path) -> Iterator[Path]:
    """The folders of this process's groups of a controller, inner ones first, as far as they are mounted here."""
    for line in _text(system / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") and (number, controllers) != ("0", ""):
            continue
        for root, point in _mounts(controller if controllers else "", system):
            inside = PurePosixPath(path)
            # of a container that sees its group alone the path may be one outside of what is mounted
            below = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()
            folder = system / point.lstrip("/")
            yield from (folder / one for one in (below, *below.parents))


def _mounts(controller: str, system: Path) -> Iterator[tuple[str, str]]:
    """(the group that is mounted, where) of a controller of version 1, or with "" of version 2."""
    for line in _text(system / "proc/self/mountinfo").splitlines():
        fields, _, of_kind = line.partition(" - ")
        kind, _, options = of_kind.split(" ", 2)
        if (kind == "cgroup" and controller in options.split(",")) or (kind == "cgroup2" and not controller):
            _, _, _, root, point, *_ = fields.split()
            yield root, point


def _text(path: Path) -> str:
    """Content of a file without its end; empty where it is not there or not ours to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
