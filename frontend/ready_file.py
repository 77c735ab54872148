"""The file in which a frontend tells the supervisor its ports, whether it takes requests, and that it lives."""

import asyncio
import json
import logging
import os

PULSE_SECONDS = 1.0

log = logging.getLogger("quire.frontend")


class ReadyFile:
    """Requests need no disk: what cannot be written for want of room is tried again with every pulse."""

    def __init__(self, path: str) -> None:
        """`path`: empty where nobody watches."""
        self._path = path
        self._text = ""
        self._error = ""
        """Why it does not say so yet."""

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
            except OSError as error:  # somebody cleaned up
                self._error = self._error or str(error)
            if self._error:
                self._write()

    def _write(self) -> None:
        before, self._error = self._error, ""
        partial = f"{self._path}.{os.getpid()}.partial"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(self._text)
            os.replace(partial, self._path)
        except OSError as error:
            self._error = str(error)
            if self._error != before:
                log.error("the supervisor cannot be told about this frontend: %s", error)
