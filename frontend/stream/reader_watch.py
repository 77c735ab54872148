"""The reader's side of a stream: it waits here for events, and is found slow when it does not come back."""

import asyncio

from quire.proto.api import RequestError


class ReaderWatch:
    """One task reads; one future wakes it, however many tokens arrived."""

    def __init__(self, max_unread_bytes: int) -> None:
        self.max_unread_bytes = max_unread_bytes
        self._unread_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._beats_away = 0

    @property
    def is_waiting(self) -> bool:
        return self._waiter is not None

    def attach(self) -> None:
        """The running task reads from now on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # looks for a fork each time
        self._task = asyncio.current_task(self._loop)
        self._beats_away = 0

    async def wait(self) -> None:
        """Wait for `wake`."""
        assert self._loop is not None
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_read(self) -> None:
        """Nothing is unread any more."""
        self._unread_bytes = 0

    def on_grown(self, num_bytes: int) -> bool:
        """Wake the reader, or count bytes that it does not wait for; True when they are more than it may leave."""
        waiter = self._waiter
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(None)
            return False
        self._unread_bytes += num_bytes
        return self._unread_bytes > self.max_unread_bytes and self._task is not None

    def on_beat(self, beat_seconds: float, limit_seconds: float) -> bool:
        """Called once a beat; True when the reader has not come back for `limit_seconds`."""
        self._beats_away = 0 if self._waiter is not None else self._beats_away + 1
        return self._task is not None and self._beats_away * beat_seconds >= limit_seconds

    def cancel(self, failure: RequestError) -> None:
        """Cancel a reader that is busy elsewhere, as with a write that does not move. `failure` goes along."""
        if self._task is not None and self._waiter is None:
            self._task.cancel(failure)
