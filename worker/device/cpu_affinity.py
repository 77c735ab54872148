"""The cores a rank runs on, when several ranks share a machine."""

import os

from quire.proto.process.control_group import num_cores


def share_of_cores(rank: int, num_ranks: int, wanted_threads: int) -> tuple[int, frozenset[int]]:
    """(threads, cores) of one rank; `wanted_threads` 0 means that nothing was asked for.

    Unasked, each rank gets equally many cores of its own, so that no two ranks wait for one core in the middle of a
    parallel loop; neighbours in number, because those share caches and memory. With more ranks than cores, each runs
    on one core. Where a quota gives this process less time than its cores have, the threads are fewer, not the cores.
    Threads that were asked for are kept, and the system places them: on any core this process may use.
    The caller gives the cores to `os.sched_setaffinity` before the first parallel loop makes its threads.
    """
    cores = sorted(os.sched_getaffinity(0))
    if wanted_threads:
        return wanted_threads, frozenset(cores)
    width = max(1, len(cores) // num_ranks)
    first = rank * width % len(cores)
    return max(1, num_cores() // num_ranks), frozenset(cores[first : first + width])
