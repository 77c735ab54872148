"""Images and videos of the web, fetched by child processes: nothing else connects to where a client says."""

import asyncio
import ssl
import time
from collections.abc import Sequence

import msgspec

from quire.frontend.media.fetch_child import DONE, LATE, FetchJob, FetchSetup
from quire.frontend.media.refused import MediaRefused
from quire.frontend.media.web_address import AllowedHost, WebAddress
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxTimeout
from quire.frontend.sandbox.parent import Sandbox
from quire.proto.api import RequestError

MODULE = "quire.frontend.media.fetch_child"
MEMORY_BYTES = 256 << 20
"""Address space of a child that holds nothing."""
COPIES = 4
"""Copies of an answer that a child may hold at once."""
MAX_REASON_BYTES = 64 << 10
GRACE_SECONDS = 0.5
"""Time after its own deadline in which a child must answer: a resolver cannot be interrupted."""
RETRY_SECONDS = 1.0
REMEDY = "send the bytes as a data: URL"


class WebFetcher:
    """One per frontend. `num_fetches` files are fetched at once, each by a child of its own; others wait in order."""

    def __init__(self, allowed_domains: Sequence[str], max_bytes: int, seconds: float, num_fetches: int) -> None:
        """`allowed_domains`: see `AllowedHost`. `seconds`: time of one fetch. Raises `ValueError`."""
        self._allowed = [AllowedHost.parse(entry) for entry in allowed_domains]
        self._seconds = seconds
        self._num_fetches = num_fetches
        self._turns = asyncio.Semaphore(num_fetches)
        paths = ssl.get_default_verify_paths()  # here, because a child's environment names no files
        setup = msgspec.msgpack.encode(FetchSetup(max_bytes, paths.cafile, paths.capath))
        self._idle = [
            Sandbox(
                MODULE,
                setup,
                memory_bytes=MEMORY_BYTES + COPIES * max_bytes,
                max_answer_bytes=max(max_bytes, MAX_REASON_BYTES) + len(DONE),
                by_clock=True,
            )
            for _ in range(num_fetches)
        ]
        self._sandboxes = tuple(self._idle)

    async def fetch(self, url: str, seconds: float, fetch_seconds: float | None = None) -> memoryview:
        """The bytes behind a URL, within `seconds`, waiting for its turn included. `fetch_seconds`: of this fetch.

        Raises `MediaRefused`, `TimeoutError`, or `RequestError` where it got no turn or its child was killed.
        """
        address = self._address(url)
        begin = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await self._turns.acquire()
        except TimeoutError:
            message = f"{self._num_fetches} files are being fetched here, and no more at once; send it again"
            raise RequestError("QUEUE_FULL", message, retry_after_seconds=RETRY_SECONDS) from None
        sandbox = max(self._idle, key=lambda one: one.is_ready)  # others are started when these are busy
        self._idle.remove(sandbox)
        most = self._seconds if fetch_seconds is None else fetch_seconds
        try:
            return await self._fetch(sandbox, address, min(most, max(0.0, begin + seconds - time.monotonic())))
        finally:
            self._idle.append(sandbox)
            self._turns.release()

    async def close(self) -> None:
        for sandbox in self._sandboxes:
            await sandbox.close()

    def _address(self, url: str) -> WebAddress:
        if not self._allowed:
            raise MediaRefused(f"nothing is fetched from the web here (allowed_media_domains); {REMEDY}")
        address = WebAddress.parse(url)
        if not any(one.allows(address) for one in self._allowed):
            message = "files are fetched from other hosts or ports only (allowed_media_domains)"
            raise MediaRefused(f"{message}; {REMEDY}")
        return address

    async def _fetch(self, sandbox: Sandbox, address: WebAddress, seconds: float) -> memoryview:
        late = TimeoutError(f"was not fetched within {seconds:.3g} s; {REMEDY}")
        payload = msgspec.msgpack.encode(FetchJob(address, seconds))
        try:
            answer = memoryview(await sandbox.call(payload, seconds + GRACE_SECONDS, stop_when_left=True))
        except SandboxTimeout:
            raise late from None
        except SandboxCrashed as error:
            raise MediaRefused(f"its host's answer broke the process that fetched it; {REMEDY}") from error
        kind, rest = answer[:1], answer[1:]
        if kind == LATE:
            raise late
        if kind != DONE:
            raise MediaRefused(str(rest, "utf-8"))
        return rest
