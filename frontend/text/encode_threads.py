"""Threads for what would keep the event loop from its streams: encoding, and what else grows with a text."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SHORT_CHARS = 1024
"""Up to here the way to another thread and back takes as long as the work, which is under a millisecond."""
LONG_CHARS = 32 << 10
"""A text from which on encoding takes longer than a step of a model."""
NICENESS = 10
"""Of the threads that encode long texts: they get what cores the streams of others leave, and a tenth of a busy one."""


class EncodeThreads:
    """Short texts do not wait behind long ones, and long ones make nobody else wait."""

    def __init__(self, num_threads: int) -> None:
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer-long", initializer=_be_nice)

    def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """`function(*args, **kwargs)`, whose time grows with `size`, in characters."""
        pool = self._long if size >= LONG_CHARS else self._short
        return asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **kwargs))

    def run_python(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """`function(*args, **kwargs)`, which is Python's own work and not the library's. A thread of low priority that
        waits for a core would keep the interpreter from all others meanwhile.
        """
        return asyncio.get_running_loop().run_in_executor(self._short, lambda: function(*args, **kwargs))

    async def run_single(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for a text that comes alone: a short one is not worth the way to a thread."""
        if size <= SHORT_CHARS:
            return function(*args, **kwargs)
        return await self.run(size, function, *args, **kwargs)

    def close(self) -> None:
        """Does not wait; what has not begun is cancelled."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)


def _be_nice() -> None:
    # on Linux niceness belongs to a thread, and cannot be taken back: these threads do nothing else
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
