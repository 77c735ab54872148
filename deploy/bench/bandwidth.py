"""Read bandwidth of all cores of this machine together: the limit of decoding on a CPU. numpy only."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def read_bandwidth(num_bytes: int = 512 << 20, repeats: int = 7) -> float:
    """Bytes per second of the fastest of `repeats` passes over `num_bytes`, one thread per usable core.

    The pass is a maximum over float32, which reads every byte once, writes nothing and releases the interpreter's
    lock. `num_bytes` must exceed the caches; the best pass is taken because other work on the machine only slows it.
    """
    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(np.ones(num_bytes // 4, dtype=np.float32), cores)
    best = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(repeats):
            begin = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - begin)
    return sum(part.nbytes for part in parts) / best
