"""The watch over a reader that may take nothing at all of what its connection has to send."""

import asyncio


class StallWatch:
    """Runs while writing is paused; aborts the connection when a whole period brought no progress."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport, seconds: float, unsent_before: int = -1) -> None:
        """Look at what is unsent now and every `seconds`."""
        unsent = transport.get_write_buffer_size()
        if unsent == unsent_before:
            transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.start, transport, seconds, unsent)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
