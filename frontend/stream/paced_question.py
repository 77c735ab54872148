"""A question that costs the scheduler milliseconds, and that anybody may ask at any time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

R = TypeVar("R")

PERIOD_SECONDS = 0.2


class PacedQuestion(Generic[R]):
    """Asks at most once in `PERIOD_SECONDS`, however many wait. An answer is never older than the call that gets it."""

    def __init__(self, ask: Callable[[], Awaitable[R]]) -> None:
        self._ask = ask
        self._next: asyncio.Task[R] | None = None
        """The one that new callers share, as long as it is not asked yet."""
        self._asked_at = -PERIOD_SECONDS

    async def ask(self) -> R:
        """The next answer. Raises what the question raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._wait_and_ask())
            self._next.add_done_callback(_seen)
        return await asyncio.shield(self._next)

    async def _wait_and_ask(self) -> R:
        await asyncio.sleep(max(0.0, self._asked_at + PERIOD_SECONDS - time.monotonic()))
        self._asked_at, self._next = time.monotonic(), None
        return await self._ask()


def _seen(task: asyncio.Task[R]) -> None:
    """Its callers may all have gone: then nobody else looks at its exception."""
    if not task.cancelled():
        task.exception()
