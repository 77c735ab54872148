"""StoredResponse responses of `/v1/responses`: one sqlite3 database that all frontends of an engine share.

It is bounded in bytes and in age; the oldest finished responses go first. A response that is still being made belongs
to the frontend that makes it, which renews a lease on it; once the lease has expired, that frontend is gone and the
response counts as failed. Leases are times of a clock that nobody sets, and end with the boot that gave them.

A disk that is full or fails costs what was to be stored, not the server: each such call is refused for the time being.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from quire.frontend.fault_log import FaultLog
from quire.frontend.http.openai.responses import database
from quire.frontend.http.openai.responses.clocks import read_clocks
from quire.frontend.http.openai.responses.database import (
    BUSY_SECONDS,
    ResponseStatus,
    StoredResponse,
    open_database,
    result_code,
)
from quire.proto.api import RequestError

P = ParamSpec("P")
R = TypeVar("R")

FILE_NAME = "responses.sqlite3"
LEASE_SECONDS = 10.0
"""Time for which a frontend is believed to be making a response unless it renews its lease."""
DATABASE_ERRORS = {
    sqlite3.SQLITE_FULL: ("its disk is full", "free some space there"),
    sqlite3.SQLITE_IOERR: ("its disk does not read or write", "look at the disk, and free some space there"),
    sqlite3.SQLITE_READONLY: ("its file cannot be written", "let the server's user write there"),
    sqlite3.SQLITE_CANTOPEN: ("its file cannot be opened", "look at its rights, and at the number of open files"),
    sqlite3.SQLITE_CORRUPT: ("its file is damaged", "remove it while the engine is stopped"),
    sqlite3.SQLITE_NOTADB: ("its file is damaged", "remove it while the engine is stopped"),
}
"""SQLite's result code -> what is wrong, for clients; what to do about it, for the log."""


class ResponseStore:
    """The store of one frontend. Every method is one transaction, in a thread; the first one opens the database.

    Each raises `RequestError`: QUEUE_FULL while other processes keep it locked, RECOVERING while its disk fails.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        """`directory`: empty for a database in memory, for this process alone."""
        self._path = os.path.join(directory, FILE_NAME) if directory else ":memory:"
        self._max_bytes = max_bytes
        self.held_bytes = 0
        """Bytes of events that wait to be stored."""
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._fault_log = FaultLog(f"responses: {self._path}: are stored again")

    async def put(
        self, id: str, previous: str, status: ResponseStatus, input: bytes, answer: bytes, item_ids: Sequence[str] = ()
    ) -> None:
        """Store a response. Raises `RequestError` (QUEUE_FULL) when what is still being made fills the store.

        `item_ids`: ids of items of input and answer that this server made, by which requests may refer to them.
        """
        now = read_clocks()
        stored = StoredResponse(id, previous, status, now.wall, now.steady + LEASE_SECONDS, input, answer)
        await self._run(database.put, stored, item_ids, self._max_bytes, now)

    async def get(self, id: str) -> StoredResponse:
        """The stored response. Raises `RequestError` (UNKNOWN_REQUEST)."""
        return await self._run(database.get, id, read_clocks())

    async def chain(self, id: str) -> list[StoredResponse]:
        """The response and those it continues, oldest first. Raises `RequestError` (UNKNOWN_REQUEST)."""
        return await self._run(database.chain, id, read_clocks())

    async def holders(self, item_ids: Sequence[str]) -> list[StoredResponse]:
        """The responses in whose input or output these items stand; fewer where some are not stored here."""
        return await self._run(database.holders, item_ids, read_clocks())

    async def append_events(self, id: str, first: int, data: bytes) -> None:
        """Append events of a streamed response in the background; `first`: number of the first of them."""
        await self._run(database.append_events, id, first, data, self._max_bytes, read_clocks())

    async def events(self, id: str, after: int) -> tuple[StoredResponse, list[tuple[int, bytes]]]:
        """The response, and (first number, data) of the next of its events behind number `after`, perhaps some before.

        Nothing was ever appended where the list is empty. Raises `RequestError` (UNKNOWN_REQUEST).
        """
        return await self._run(database.events, id, after, read_clocks())

    async def finish(
        self,
        id: str,
        status: ResponseStatus,
        answer: bytes,
        item_ids: Sequence[str] = (),
        events: tuple[int, bytes] | None = None,
    ) -> bool:
        """Store the end of a response that was being made, and the last events of one that streams.

        False where it was cancelled or deleted meanwhile.
        """
        return await self._run(database.finish, id, status, answer, item_ids, events, self._max_bytes, read_clocks())

    async def cancel(self, id: str) -> StoredResponse:
        """Cancel a response if it is in progress; its new state. Raises `RequestError` (UNKNOWN_REQUEST)."""
        return await self._run(database.cancel, id, read_clocks())

    async def delete(self, id: str) -> None:
        """Delete a response. Raises `RequestError` (UNKNOWN_REQUEST)."""
        await self._run(database.delete, id, read_clocks())

    async def renew(self, ids: Iterable[str]) -> set[str]:
        """Renew the leases of those of `ids` that are still in progress; these ids."""
        return await self._run(database.renew, tuple(ids), read_clocks().steady + LEASE_SECONDS)

    async def _run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        def transaction() -> R:
            with self._lock, self._translated():
                connection = self._begin()
                num_changes = connection.total_changes
                try:
                    result = function(connection, *args, **kwargs)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:  # what SQLite ended itself, as on a full disk, is over
                        connection.execute("ROLLBACK")
                    raise
                if connection.total_changes > num_changes:  # to read may work on a disk that is full
                    self._fault_log.end()
                return result

        return await asyncio.to_thread(transaction)

    def _begin(self) -> sqlite3.Connection:
        self._connection = self._connection or open_database(self._path)
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of SQLite into errors for clients; the rest is logged, once."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = result_code(error)
            if code == sqlite3.SQLITE_BUSY:
                message = f"the store of responses stayed locked for {BUSY_SECONDS:g} s; try later"
                raise RequestError("QUEUE_FULL", message, retry_after_seconds=1.0) from error
            if code not in DATABASE_ERRORS:
                raise
            wrong, remedy = DATABASE_ERRORS[code]
            self._fault_log.begin(f"responses: {self._path}: {error}: {remedy}; none is stored meanwhile")
            message = f"the store of responses does not work: {wrong}; try later, or create with store set to false"
            raise RequestError("RECOVERING", message, retry_after_seconds=1.0) from error
