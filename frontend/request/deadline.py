"""The time-out of a request while it is prepared: waiting before its submission counts, too."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from quire.proto.api import RequestError

R = TypeVar("R")


async def in_time(deadline: float, work: Awaitable[R]) -> R:
    """The result of `work`; `deadline` is monotonic time. Raises `RequestError` (DEADLINE), and what `work` raises."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise RequestError("DEADLINE", "the time-out passed before the request could be submitted") from None
