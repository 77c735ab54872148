"""Turns to write: messages of running streams keep neither new calls nor other processes waiting.

`grpc.aio` takes some five turns of the event loop to accept a call, and does so one call after another. A turn in which
each of hundreds of streams begins a message takes ten milliseconds, as does the one in which all of them are done.
"""

import asyncio
from collections import deque

from quire.frontend.grpc.corks import Corks

MOST_WRITES = 24
"""Messages begun in one turn: one or two milliseconds. Fewer are more turns for the same messages, more keep
calls waiting.
"""
PAUSE_SECONDS = 0.001
"""Longest pause after a turn, which lasts as long as the turn did. Calls are accepted in it, and where there are few
cores the scheduler finds one: a frontend that is behind would never sleep, and the device would wait for a step's plan.
"""


class WriteTurns:
    """Lets the streams of a server begin their messages in the order in which they ask, some in each turn.

    Nobody waits while there are few. What a stream gets while it waits goes into the message that it writes then, so
    streams that are more than the loop can serve write fewer and longer ones. What is written in one turn leaves
    together where streams share a connection.
    """

    def __init__(self, corks: Corks, most_writes: int = MOST_WRITES) -> None:
        """`corks`: those of the connections on which the streams write."""
        self._corks = corks
        self._most_writes = most_writes
        self._num_left = most_writes
        self._first: deque[asyncio.Future[None]] = deque()
        """Turns of streams that have written nothing yet: their clients wait for a first token."""
        self._later: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def begin(self, is_first: bool) -> None:
        """Wait until a message may begin; `is_first`: of its stream."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._on_turn, loop)
        if self._num_left:  # a turn serves those that wait before it leaves any
            self._num_left -= 1
            return
        turn = loop.create_future()
        (self._first if is_first else self._later).append(turn)
        await turn

    def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_left = self._most_writes
        while self._num_left and (waiting := self._first or self._later):
            turn = waiting.popleft()
            if not turn.done():  # it is when its stream was cancelled
                turn.set_result(None)
                self._num_left -= 1
        self._is_scheduled = self._num_left < self._most_writes
        if self._is_scheduled:
            self._corks.hold()
            loop.call_soon(self._on_written, loop, loop.time())  # behind the streams that go on now

    def _on_written(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        """Pause after a turn: all of its messages have begun since `began`."""
        self._corks.release()
        loop.call_later(min(loop.time() - began, PAUSE_SECONDS), self._on_turn, loop)
