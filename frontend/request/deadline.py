"""What a request waits for before it is submitted counts against its time-out, too."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from quire.proto.api import RequestError

R = TypeVar("R")


async def in_time(deadline: float, work: Awaitable[R]) -> R:
    """`deadline` on the monotonic clock. Raises `RequestError` (DEADLINE), and what `work` raises."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise RequestError("DEADLINE", "the time-out passed before the request could be submitted") from None
