"""The time since a peer's last message, measured by a process that may itself be held up."""

import asyncio
import time


class SilenceClock:
    """Seconds on the monotonic clock since the start or the last message."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def on_received(self) -> None:
        """Begin anew: a message arrived."""
        self._since = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._since

    async def sleep(self, seconds: float) -> float:
        """Sleep; the seconds it took longer. This process stood still in them, so they do not count as silence."""
        due = time.monotonic() + seconds
        await asyncio.sleep(seconds)
        now = time.monotonic()
        overslept = max(0.0, now - due)
        self._since = min(now, self._since + overslept)
        return overslept
