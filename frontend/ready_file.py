"""The file in which a frontend tells the supervisor its ports, whether it takes requests, and that it lives."""

import asyncio
import json
import os

from quire.frontend.trouble import Trouble

PULSE_SECONDS = 1.0


class ReadyFile:
    """Requests need no disk: what cannot be written for want of room is tried again with every pulse."""

    def __init__(self, path: str) -> None:
        """`path`: empty where nobody watches."""
        self._path = path
        self._text = ""
        self._is_stale = False
        """It does not say so yet."""
        self._trouble = Trouble("the supervisor is told about this frontend again")

    def tell(self, ports: dict[str, int], ready: bool) -> None:
        """Whole or not at all."""
        self._text = json.dumps({**ports, "ready": ready})
        if self._path:
            self._write()

    async def keep(self) -> None:
        """Touch it once a second: the supervisor sees that this loop turns, whatever else is down."""
        while self._path:
            await asyncio.sleep(PULSE_SECONDS)
            try:
                os.utime(self._path)
            except OSError:  # somebody cleaned up
                self._is_stale = True
            if self._is_stale:
                self._write()

    def _write(self) -> None:
        partial = f"{self._path}.{os.getpid()}.partial"
        self._is_stale = True
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(self._text)
            os.replace(partial, self._path)
            self._is_stale = False
        except OSError as error:
            self._trouble.is_there(f"the supervisor cannot be told about this frontend: {error}")
        else:
            self._trouble.ends()
