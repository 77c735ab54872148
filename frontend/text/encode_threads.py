"""Threads for encoding and other work that grows with a text: it must not keep the event loop from its streams."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SHORT_CHARS = 1024
"""Length up to which a switch of threads takes as long as the work, which is under a millisecond."""
SHORT_WORK_CHARS = 8 << 10
"""Length up to which Python's own work on a text mostly takes less than a switch of threads, and never milliseconds."""
GIVING_WAY_CHARS = 32 << 10
"""Length from which on encoding takes longer than a step of a model."""
NICENESS = 10
"""Niceness of the threads for long texts: they get the cores that others' streams leave, and a tenth of a busy one."""


class EncodeThreads:
    """Threads for short texts, for long ones and for Python's own work: short texts wait for none of the others."""

    def __init__(self, num_threads: int) -> None:
        self._short = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._python = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer-python")
        self._long = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer-long", initializer=_be_nice)

    def run(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """`function(*args, **kwargs)`, whose time grows with `size`, in characters."""
        pool = self._long if size >= GIVING_WAY_CHARS else self._short
        return asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **kwargs))

    def run_python(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """`function(*args, **kwargs)`, which is work of Python and not of the library.

        A thread of low priority that waits for a core would keep the interpreter from all others meanwhile.
        """
        return asyncio.get_running_loop().run_in_executor(self._python, lambda: function(*args, **kwargs))

    async def run_single(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run_python`, for a text that comes alone: a short one is not worth a switch of threads."""
        if size <= SHORT_WORK_CHARS:
            return function(*args, **kwargs)
        return await self.run_python(function, *args, **kwargs)

    def close(self) -> None:
        """Cancel what has not begun. Does not wait."""
        for pool in (self._short, self._python, self._long):
            pool.shutdown(wait=False, cancel_futures=True)


def _be_nice() -> None:
    # on Linux niceness belongs to a thread, and cannot be taken back: these threads do nothing else
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
