"""Memory of the machine and products of its processor, as the kernel says. No torch here: deploy imports this file."""

from pathlib import Path

OOM_COUNTS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Files with a line `oom_kill N`: of the control group, and of the whole machine."""


def machine_bytes(field: str) -> int:
    """A line of /proc/meminfo, capped by the memory limit of the control group."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
    limit = Path("/sys/fs/cgroup/memory.max")
    used = Path("/sys/fs/cgroup/memory.current")
    text = limit.read_text().strip() if limit.exists() else "max"
    if text == "max":
        return found
    room = int(text) - (int(used.read_text()) if field == "MemAvailable" and used.exists() else 0)
    return max(0, min(found, room))


def bf16_products(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the instructions by which bfloat16 is no slower than float32: "AMX", "AVX-512", or empty.

    AVX-512 multiplies pairs or widens them to float32, whichever is faster here: kernels/cpu/native.py.
    """
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    flags = {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}
    if not {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
        return ""
    return "AMX" if {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"} <= flags else "AVX-512"


def oom_kills() -> int | None:
    """Count of processes that the kernel ended for want of memory, here and in the control group; None: not counted."""
    counts = [
        int(line.split()[1])
        for path in OOM_COUNTS
        if path.exists()
        for line in path.read_text().splitlines()
        if line.startswith("oom_kill ")
    ]
    return sum(counts) if counts else None
