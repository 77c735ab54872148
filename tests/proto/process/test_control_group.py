"""Quotas as the kernel shows them, to a process of a container, of a service and of neither."""

import os
from pathlib import Path

import pytest

from quire.proto.process import control_group
from quire.proto.process.control_group import cpu_quota, num_cores, thread_limits

V2 = "35 24 0:30 {root} {point} rw,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate"
V1 = "41 32 0:36 {root} {point} rw,nosuid shared:18 - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "42 32 0:37 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
OTHER = "23 28 0:21 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755"


def of_two(path: str) -> str:
    return f"4:memory:{path}\n3:cpu,cpuacct:{path}\n"


CASES = {
    "a container that sees its group alone, v2": (
        "0::/\n",
        V2.format(root="/", point="/sys/fs/cgroup"),
        {"cpu.max": "150000 100000\n"},
        1.5,
    ),
    "a container on a host without name spaces of groups, v1": (
        of_two("/docker/abc"),
        V1.format(root="/docker/abc", point="/sys/fs/cgroup/cpu,cpuacct"),
        {"cpu,cpuacct/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
        0.5,
    ),
    "a service, whose slice is tighter, v2": (
        "0::/system.slice/quire.service\n",
        V2.format(root="/", point="/sys/fs/cgroup"),
        {
            "cpu.max": "max 100000\n",
            "system.slice/cpu.max": "200000 100000\n",
            "system.slice/quire.service/cpu.max": "300000 100000\n",
        },
        2.0,
    ),
    "a group within another, v1 beside v2": (
        "0::/\n" + of_two("/kubepods/pod1/c"),
        V2.format(root="/", point="/sys/fs/cgroup/unified") + "\n" + V1.format(root="/", point="/sys/fs/cgroup/cpu"),
        {
            "cpu/kubepods/pod1/cpu.cfs_quota_us": "250000",
            "cpu/kubepods/pod1/cpu.cfs_period_us": "100000",
            "cpu/kubepods/pod1/c/cpu.cfs_quota_us": "-1",
            "cpu/kubepods/pod1/c/cpu.cfs_period_us": "100000",
        },
        2.5,
    ),
    "a path outside of what is mounted, v2": (
        "0::/../other\n",
        V2.format(root="/below", point="/sys/fs/cgroup"),
        {"cpu.max": "100000 50000"},
        2.0,
    ),
    "no quota, v2": ("0::/\n", V2.format(root="/", point="/sys/fs/cgroup"), {"cpu.max": "max 100000"}, None),
    "no quota, v1": (
        of_two("/"),
        V1.format(root="/", point="/sys/fs/cgroup/cpu"),
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        None,
    ),
    "nothing mounted": ("0::/\n", "", {}, None),
}


@pytest.mark.parametrize(("groups", "mounts", "files", "quota"), CASES.values(), ids=CASES)
def test_the_tightest_quota_around_a_process_bounds_its_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    mounts: str,
    files: dict[str, str],
    quota: float | None,
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(f"{OTHER}\n{MEMORY}\n{mounts}\n")
    for name, content in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6, 7})
    assert cpu_quota(tmp_path) == quota
    assert num_cores(tmp_path) == (4 if quota is None else max(1, int(quota)))


def test_a_quota_beyond_the_cores_adds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5})
    monkeypatch.setattr("quire.proto.process.control_group.cpu_quota", lambda system: 7.5)
    assert num_cores(tmp_path) == 2


def test_limits_of_threads_are_those_of_all_groups_and_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/a/b\n")
    (tmp_path / "proc" / "self" / "mountinfo").write_text(V2.format(root="/", point="/sys/fs/cgroup"))
    for group, most, taken in (("a/b", "max", 3), ("a", "40", 30)):
        folder = tmp_path / "sys" / "fs" / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pids.max").write_text(f"{most}\n")
        (folder / "pids.current").write_text(f"{taken}\n")
    for process, num_threads in ((1, 2), (7, 3)):
        for thread in range(num_threads):
            (tmp_path / "proc" / str(process) / "task" / str(thread)).mkdir(parents=True)
    assert next(limit.num_left for limit in thread_limits(tmp_path)) == 10
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid or 77)
    monkeypatch.setattr(control_group, "_processes_of", lambda user, system: (system / "proc").glob("[0-9]*"))
    monkeypatch.setattr(control_group.resource, "getrlimit", lambda which: (100, 100))
    assert [limit.num_left for limit in thread_limits(tmp_path)] == [10, 95]
