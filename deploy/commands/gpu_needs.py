"""Needs of a GPU's kernels: a C compiler, a cache for what it made, shared memory between ranks.

Triton compiles a launcher in C for each kernel and loads it from its cache.
"""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 64 << 20
"""The size in a container that was not told another."""


def lacking() -> Iterator[str]:
    """A sentence for each thing without which no kernel starts."""
    cache = cache_directory()
    made = next((path for path in (cache, *cache.parents) if path.exists()), cache)
    if not (made.is_dir() and os.access(made, os.W_OK | os.X_OK)):
        yield (
            f"TRITON_CACHE_DIR: {cache} cannot be written to, where compiled kernels are kept; set the variable to a "
            "directory on a volume or a tmpfs"
        )
    elif os.statvfs(made).f_flag & os.ST_NOEXEC:
        yield (
            f"TRITON_CACHE_DIR: {cache} is mounted noexec, and compiled kernels are loaded from there; mount it with "
            "exec (--tmpfs /tmp:exec), or set the variable to another directory"
        )
    if any(cache.glob("*/*.so")):
        return  # launchers are there already
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        yield "CC: kernels on a GPU need a C compiler, and neither gcc nor clang is on the PATH; install one"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        yield f"kernels on a GPU need Python's headers, and {header} is not there; install python3-dev"


def doubts(tensor_parallel_size: int) -> Iterator[str]:
    """A sentence for what may be too little."""
    found = os.statvfs(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
    num_bytes = found.f_blocks * found.f_frsize if found else 0
    if tensor_parallel_size > 1 and num_bytes <= LEAST_SHARED_BYTES:
        yield (
            f"warning: {SHARED_MEMORY} has {num_bytes >> 20} MiB, too little for NCCL between {tensor_parallel_size} "
            "ranks; start the container with --shm-size 8g or --ipc=host"
        )


def cache_directory() -> Path:
    """The directory in which Triton keeps what it compiled."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
