"""How many bytes of bodies both doors may hold while they are read and prepared, over all connections.

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
"""One part in so many is for small bodies alone: a few large ones must not keep them out."""
RETRY_SECONDS = 1.0

Refusal = Literal["refused", "gave_way"]

_current: ContextVar["Body | None"] = ContextVar("body", default=None)


class Body:
    """What one request holds of the budget."""

    def __init__(self, budget: "ByteBudget") -> None:
        self.size = 0
        """Bytes that came so far."""
        self.held = 0
        self.num_parts = 1
        """Prompts that are prepared apart."""
        self.give_way: Callable[[], None] | None = None
        """While it is read: ends the reading, whose bytes are free at once."""
        self.gave_way = False
        self._budget = budget
        self._begin = budget.now()

    @property
    def rate(self) -> float:
        """Bytes per second since it began to come."""
        return self.size / max(self._budget.now() - self._begin, 1e-3)

    def grow(self, num_bytes: int) -> None:
        """So many more have come. Raises `RequestError` (QUEUE_FULL) when there is no room for them."""
        self.size += num_bytes
        self._budget.take(self, num_bytes)

    def prepared(self) -> None:
        """One of its prompts is on its way, or refused."""
        self.num_parts -= 1
        if self.num_parts <= 0:
            self.free()

    def free(self) -> None:
        """Nothing of it is held any more."""
        self._budget.give_back(self)


class ByteBudget:
    """One per frontend, touched by the event loop only."""

    def __init__(self, max_bytes: int, refused: Callable[[Refusal], None]) -> None:
        """`refused` is told of every body that found no room, or gave way."""
        self.used = 0
        self._max_bytes = max_bytes
        self._refused = refused
        self._bodies: set[Body] = set()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @contextmanager
    def body(self) -> Iterator[Body]:
        """Around one request: its body, which `current_body` finds within."""
        body = Body(self)
        token = _current.set(body)
        try:
            yield body
        finally:
            _current.reset(token)
            body.free()

    def take(self, body: Body, num_bytes: int) -> None:
        """Raises `RequestError`."""
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
        """Its bytes are free; more of it can still come."""
        self.used -= body.held
        body.held = 0
        self._bodies.discard(body)


def current_body() -> Body | None:
    """Of the request that the running task works for."""
    return _current.get()


def body_size() -> int:
    """Bytes of that body so far."""
    body = _current.get()
    return body.size if body is not None else 0
