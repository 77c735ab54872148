"""Responses this frontend makes while nobody waits for them: their tasks, and the leases on them."""

import asyncio
import sqlite3
from collections.abc import Coroutine

from quire.frontend.fault_log import FaultLog
from quire.frontend.http.openai.responses.store import LEASE_SECONDS, ResponseStore
from quire.proto.api import RequestError

RENEW_SECONDS = LEASE_SECONDS / 5


class Background:
    """A response that was cancelled or deleted through another frontend is noticed when leases are renewed."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self._leased: dict[str, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._fault_log = FaultLog("leases of responses are renewed again")

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run it; whoever asked for it may leave."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def lease(self, id: str) -> None:
        """The running task, started here, has stored response `id` and makes it until the task ends."""
        task = asyncio.current_task()
        assert task is not None
        self._leased[id] = task
        task.add_done_callback(lambda _: self._leased.pop(id))
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    def stop(self, id: str) -> None:
        """Stop making it, if it is made here."""
        if id in self._leased:
            self._leased[id].cancel()

    async def _renew(self) -> None:
        while self._leased:
            await asyncio.sleep(RENEW_SECONDS)
            asked = set(self._leased)
            try:
                wanted = await self._store.renew(asked)
            except (sqlite3.Error, RequestError) as error:
                self._fault_log.begin(f"leases of responses are not renewed: {error}")
                continue
            self._fault_log.end()
            for id in asked - wanted:  # what was begun meanwhile was not asked for
                self.stop(id)
