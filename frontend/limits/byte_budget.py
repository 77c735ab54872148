"""The budget of bytes for bodies that are being read and prepared, over all connections of both servers.

Bytes count as they come, not as they are announced: who promises much and sends little holds little. When they run out,
the body that comes slowest of those still being read gives way, if it comes slower than the one that wants more; else
the one that wants more is refused. So the budget belongs to those who send, and nobody waits for anybody.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from quire.proto.api import RequestError

SMALL_BYTES = 32 << 10
SMALL_SHARE = 8
"""One part in so many of the budget is for small bodies alone: a few large ones must not keep them out."""
RETRY_SECONDS = 1.0

Refusal = Literal["refused", "gave_way"]

_current: ContextVar["Body | None"] = ContextVar("body", default=None)


class Body:
    """The bytes that one request holds of the budget."""

    def __init__(self, budget: "ByteBudget") -> None:
        self.size = 0
        """Number of bytes received so far."""
        self.held = 0
        self.num_parts = 1
        """Number of prompts that are prepared apart."""
        self.give_way: Callable[[], None] | None = None
        """Ends the reading, whose bytes are free at once; None while the body is not being read."""
        self.gave_way = False
        self._budget = budget
        self._begin = budget.now()

    @property
    def rate(self) -> float:
        """Bytes per second since the first byte."""
        return self.size / max(self._budget.now() - self._begin, 1e-3)

    def grow(self, num_bytes: int) -> None:
        """Take so many more bytes. Raises `RequestError` (QUEUE_FULL) when there is no room for them."""
        self.size += num_bytes
        self._budget.take(self, num_bytes)

    def prepared(self) -> None:
        """Count one of its prompts as submitted or refused; the last one frees the body."""
        self.num_parts -= 1
        if self.num_parts <= 0:
            self.free()

    def free(self) -> None:
        """Give all its bytes back."""
        self._budget.give_back(self)


class ByteBudget:
    """One per frontend, touched by the event loop only."""

    def __init__(self, max_bytes: int, refused: Callable[[Refusal], None]) -> None:
        """`refused` is called for every body that found no room, or gave way."""
        self.used = 0
        self._max_bytes = max_bytes
        self._refused = refused
        self._bodies: set[Body] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @contextmanager
    def body(self) -> Iterator[Body]:
        """The body of one request, around its work; `current_body` finds it there."""
        body = Body(self)
        token = _current.set(body)
        try:
            yield body
        finally:
            _current.reset(token)
            body.free()

    def take(self, body: Body, num_bytes: int) -> None:
        """Take bytes for a body, where need be from the slowest one. Raises `RequestError`."""
        most = self._max_bytes
        if body.size > SMALL_BYTES:
            most -= most // SMALL_SHARE
        while self.used + num_bytes > most:
            slowest = min((one for one in self._bodies if one.give_way), key=lambda one: one.rate, default=body)
            if slowest is body or slowest.rate >= body.rate or slowest.give_way is None:
                self._refused("refused")
                message = f"bodies of {self.used} bytes are being read and prepared here; at most {most} may be"
                raise RequestError("QUEUE_FULL", message, retry_after_seconds=RETRY_SECONDS)
            self._refused("gave_way")
            self.give_back(slowest)
            slowest.gave_way = True
            slowest.give_way()
            slowest.give_way = None
        self.used += num_bytes
        body.held += num_bytes
        self._bodies.add(body)

    def give_back(self, body: Body) -> None:
        """Free its bytes; more of it can still come."""
        self.used -= body.held
        body.held = 0
        self._bodies.discard(body)


def current_body() -> Body | None:
    """The body of the request that the running task works for; None outside of any."""
    return _current.get()


def body_size() -> int:
    """Number of bytes of that body so far; 0 outside of any."""
    body = _current.get()
    return body.size if body is not None else 0
