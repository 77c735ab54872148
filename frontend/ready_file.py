"""The file by which a frontend shows the supervisor its ports, its readiness, and that it lives."""

import asyncio
import json
import os

from quire.frontend.fault_log import FaultLog

PULSE_SECONDS = 1.0


class ReadyFile:
    """Requests need no disk: what cannot be written for want of room is tried again with every pulse."""

    def __init__(self, path: str) -> None:
        """`path`: empty where nobody watches."""
        self._path = path
        self._text = ""
        self._is_stale = False
        """True while the file's content is an older one, or it is missing."""
        self._fault_log = FaultLog("the supervisor is told about this frontend again")

    def write_state(self, ports: dict[str, int], ready: bool) -> None:
        """Write the file, whole or not at all."""
        self._text = json.dumps({**ports, "ready": ready})
        if self._path:
            self._write()

    async def keep(self) -> None:
        """Touch it once a second: the supervisor sees that this event loop runs, whatever else is down."""
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
            self._fault_log.begin(f"the supervisor cannot be told about this frontend: {error}")
        else:
            self._fault_log.end()
