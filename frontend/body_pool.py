"""Threads that look into large bodies. They are few, and nobody else's: a body that takes long makes only other large
ones wait, never metrics or answers.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quire.frontend.byte_budget import current_body

R = TypeVar("R")
IsStopped = Callable[[], bool]

LARGE_BYTES = 8 << 10
"""A body of this size is not looked into on the event loop: it can hold enough to take milliseconds."""


class BodyPool:
    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="bodies")

    async def run(self, function: Callable[[IsStopped], R], size: int | None = None) -> R:
        """`function(is_stopped)`, in a thread when the body is large; told to stop when the caller is cancelled.

        `size`: of the body; by default that of the running request's.
        """
        if size is None:
            body = current_body()
            size = body.size if body is not None else 0
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
