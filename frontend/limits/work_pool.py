"""Threads for what takes long in Python itself. They are few, and each kind of work has its own: large bodies make only
other large bodies wait, large answers only other large answers, and neither of them metrics.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")
IsStopped = Callable[[], bool]

LARGE_BYTES = 8 << 10
"""What a body or an answer of this size holds can take milliseconds: too long for the event loop."""


class WorkPool:
    """One for each kind of work."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    async def run(self, size: int, function: Callable[[IsStopped], R]) -> R:
        """`function(is_stopped)`, in a thread when `size` (in bytes) is large; told to stop when the caller is
        cancelled.
        """
        if size < LARGE_BYTES:
            return function(bool)
        stopped = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, stopped.is_set)
        except asyncio.CancelledError:
            stopped.set()
            raise

    def close(self) -> None:
        """Does not wait; what has not begun is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
