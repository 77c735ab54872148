"""How long a peer has said nothing, as counted by a listener that may itself be held up."""

import asyncio
import time


class Silence:
    """Seconds on the monotonic clock, from the start or the last word."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def broken(self) -> None:
        """Something was heard."""
        self._since = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._since

    async def sleep(self, seconds: float) -> float:
        """Sleep. By what it takes longer (returned) this process stood still and could not hear: nobody's silence."""
        due = time.monotonic() + seconds
        await asyncio.sleep(seconds)
        now = time.monotonic()
        overslept = max(0.0, now - due)
        self._since = min(now, self._since + overslept)
        return overslept
