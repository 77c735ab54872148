"""Turns to write: messages of running streams do not keep new calls waiting.

`grpc.aio` takes some five turns of the event loop to accept a call, and does so one call after another. A turn in which
each of hundreds of streams begins a message takes ten milliseconds, as does the one in which all of them are done.
"""

import asyncio
from collections import deque

MOST_WRITES = 2
"""Messages begun in one turn: a tenth of a millisecond, and then calls and completions have theirs."""


class WriteTurns:
    """Lets the streams of a server begin their messages in the order in which they ask, some in each turn of the loop.

    Nobody waits while there are few. What a stream gets while it waits goes into the message that it writes then, so
    streams that are more than the loop can serve write fewer and longer ones.
    """

    def __init__(self, most_writes: int = MOST_WRITES) -> None:
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
            loop.call_soon(self._on_turn, loop)
