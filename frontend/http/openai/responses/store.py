"""Stored responses of `/v1/responses`: one sqlite3 database that all frontends of an engine share.

It is bounded in bytes and in age; the oldest finished responses go first. A response that is still being made belongs
to the frontend that makes it, which renews a lease on it; once the lease ran out, that frontend is gone and the
response counts as failed. Leases are read off a clock that nobody sets, and end with the boot that gave them.

A disk that is full or fails costs what was to be stored, not the server: each such call is refused for the time being.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

from quire.frontend.fault_log import FaultLog
from quire.proto.api import RequestError

P = ParamSpec("P")
R = TypeVar("R")
Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

FILE_NAME = "responses.sqlite3"
MAX_AGE_SECONDS = 30 * 86_400.0
LEASE_SECONDS = 10.0
BUSY_SECONDS = 5.0
RETRY_SECONDS = 0.01
MAX_CHAIN = 1000
WRONG = {
    sqlite3.SQLITE_FULL: ("its disk is full", "free some space there"),
    sqlite3.SQLITE_IOERR: ("its disk does not read or write", "look at the disk, and free some space there"),
    sqlite3.SQLITE_READONLY: ("its file cannot be written", "let the server's user write there"),
    sqlite3.SQLITE_CANTOPEN: ("its file cannot be opened", "look at its rights, and at the number of open files"),
    sqlite3.SQLITE_CORRUPT: ("its file is damaged", "remove it while the engine is stopped"),
    sqlite3.SQLITE_NOTADB: ("its file is damaged", "remove it while the engine is stopped"),
}
"""What a result of SQLite means to a client, and to whoever runs the server."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, previous TEXT NOT NULL, status TEXT NOT NULL, created REAL NOT NULL, lease REAL NOT NULL,
    size INTEGER NOT NULL, input BLOB NOT NULL, answer BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON responses (created, status, size);
CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);
"""
SELECT = "SELECT id, previous, status, created, lease, input, answer FROM responses WHERE id = ?"


class Moment(NamedTuple):
    """The same for all processes of this machine: leases are read by others than who wrote them."""

    wall: float
    """Seconds since 1970, for ages."""
    steady: float
    """Seconds since the machine's boot without those it slept, for leases: makers sleep with it."""


def moment() -> Moment:
    return Moment(time.time(), time.monotonic())


def boot() -> str:
    """Another one after each boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@dataclass(frozen=True, slots=True)
class Stored:
    """One response. `input` and `answer` are JSON: the request's own items, and the response object."""

    id: str
    previous: str
    """Id of the response this one continues; empty: none."""
    status: Status
    created: float
    """Seconds since 1970."""
    lease: float
    """Until when its frontend is believed to be making it: `Moment.steady` of the boot the store knows."""
    input: bytes
    answer: bytes


class ResponseStore:
    """Every method is one transaction, in a thread. Opened at its first use.

    Each raises `RequestError`: QUEUE_FULL while other processes keep it locked, RECOVERING while its disk fails.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        """An empty `directory`: kept in memory, for this process alone."""
        self._path = os.path.join(directory, FILE_NAME) if directory else ":memory:"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._fault_log = FaultLog(f"responses: {self._path}: are stored again")

    async def put(self, id: str, previous: str, status: Status, input: bytes, answer: bytes) -> None:
        """Raises `RequestError` (QUEUE_FULL) when what is still being made fills the store."""
        now = moment()
        stored = Stored(id, previous, status, now.wall, now.steady + LEASE_SECONDS, input, answer)
        await self._run(_put, stored, self._max_bytes, now)

    async def get(self, id: str) -> Stored:
        """Raises `RequestError` (UNKNOWN_REQUEST)."""
        return await self._run(_get, id, moment())

    async def chain(self, id: str) -> list[Stored]:
        """The response and those it continues, oldest first. Raises `RequestError` (UNKNOWN_REQUEST)."""
        return await self._run(_chain, id, moment())

    async def finish(self, id: str, status: Status, answer: bytes) -> bool:
        """Replace what was being made. False: it was cancelled or deleted meanwhile, and stays so."""
        return await self._run(_finish, id, status, answer, self._max_bytes, moment())

    async def cancel(self, id: str) -> Stored:
        """Mark what is still being made as cancelled; what it is now. Raises `RequestError` (UNKNOWN_REQUEST)."""
        return await self._run(_cancel, id, moment())

    async def delete(self, id: str) -> None:
        """Raises `RequestError` (UNKNOWN_REQUEST)."""
        await self._run(_delete, id, moment())

    async def renew(self, ids: Iterable[str]) -> set[str]:
        """Extend the leases of those of `ids` that are still wanted; they are returned."""
        return await self._run(_renew, tuple(ids), moment().steady + LEASE_SECONDS)

    async def _run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        def transaction() -> R:
            with self._lock, self._refusals():
                database = self._begin()
                num_changes = database.total_changes
                try:
                    result = function(database, *args, **kwargs)
                    database.execute("COMMIT")
                except BaseException:
                    if database.in_transaction:  # what SQLite ended itself, as on a full disk, is over
                        database.execute("ROLLBACK")
                    raise
                if database.total_changes > num_changes:  # to read may work on a disk that is full
                    self._fault_log.end()
                return result

        return await asyncio.to_thread(transaction)

    def _begin(self) -> sqlite3.Connection:
        self._database = self._database or _open(self._path)
        self._database.execute("BEGIN IMMEDIATE")
        return self._database

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What SQLite raises, as what a client may know of it; the rest is for the log, once."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = _code(error)
            if code == sqlite3.SQLITE_BUSY:
                message = f"the store of responses stayed locked for {BUSY_SECONDS:g} s; try later"
                raise RequestError("QUEUE_FULL", message, retry_after_seconds=1.0) from error
            if code not in WRONG:
                raise
            wrong, remedy = WRONG[code]
            self._fault_log.begin(f"responses: {self._path}: {error}: {remedy}; none is stored meanwhile")
            message = f"the store of responses does not work: {wrong}; try later, or create with store set to false"
            raise RequestError("RECOVERING", message, retry_after_seconds=1.0) from error


def _open(path: str) -> sqlite3.Connection:
    """Waits for frontends that open it at the same time: to change the journal mode SQLite itself waits for nobody."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(SCHEMA)
            _end_leases_of_another_boot(database)
        except sqlite3.DatabaseError as error:
            database.close()
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return database


def _code(error: sqlite3.Error) -> int:
    """Of SQLite's extended codes the low byte; 0 for what Python's module raises by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _end_leases_of_another_boot(database: sqlite3.Connection) -> None:
    """Whoever held them has not survived it, and the clock they were read off has begun anew."""
    this = boot()
    database.execute("BEGIN IMMEDIATE")
    if database.execute("SELECT id FROM boot").fetchall() != [(this,)]:
        database.execute("DELETE FROM boot")
        database.execute("INSERT INTO boot VALUES (?)", (this,))
        database.execute("UPDATE responses SET lease = -1 WHERE status = 'in_progress'")
    database.execute("COMMIT")


def _put(database: sqlite3.Connection, stored: Stored, max_bytes: int, now: Moment) -> None:
    size = _size(stored.input, stored.answer)
    if stored.status == "in_progress":
        query = "SELECT coalesce(sum(size), 0) FROM responses WHERE status = 'in_progress' AND lease >= ?"
        if database.execute(query, (now.steady,)).fetchone()[0] + size > max_bytes:
            raise RequestError(
                "QUEUE_FULL",
                f"responses in progress fill the store of {max_bytes} bytes; try later, or without background",
                retry_after_seconds=1.0,
            )
    values = (stored.id, stored.previous, stored.status, stored.created, stored.lease, size, stored.input)
    database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*values, stored.answer))
    _trim(database, max_bytes, now)


def _trim(database: sqlite3.Connection, max_bytes: int, now: Moment) -> None:
    idle = "(status != 'in_progress' OR lease < ?)"
    database.execute(f"DELETE FROM responses WHERE created < ? AND {idle}", (now.wall - MAX_AGE_SECONDS, now.steady))
    excess: int = database.execute("SELECT coalesce(sum(size), 0) FROM responses").fetchone()[0] - max_bytes
    query = f"SELECT id, size FROM responses WHERE {idle} ORDER BY created LIMIT 1"
    while excess > 0 and (oldest := database.execute(query, (now.steady,)).fetchone()) is not None:
        database.execute("DELETE FROM responses WHERE id = ?", oldest[:1])
        excess -= oldest[1]


def _get(database: sqlite3.Connection, id: str, now: Moment) -> Stored:
    row = database.execute(SELECT, (id,)).fetchone()
    if row is None:
        raise RequestError("UNKNOWN_REQUEST", f"response {id!r} is not stored here: never was, deleted or too old")
    if row[2] == "in_progress" and row[4] < now.steady:
        database.execute("UPDATE responses SET status = 'failed' WHERE id = ?", (id,))
        row = database.execute(SELECT, (id,)).fetchone()
    return Stored(*row)


def _chain(database: sqlite3.Connection, id: str, now: Moment) -> list[Stored]:
    chain = [_get(database, id, now)]
    while chain[-1].previous and len(chain) < MAX_CHAIN:
        chain.append(_get(database, chain[-1].previous, now))
    return chain[::-1]


def _finish(database: sqlite3.Connection, id: str, status: Status, answer: bytes, max_bytes: int, now: Moment) -> bool:
    changed = database.execute(
        "UPDATE responses SET status = ?, answer = ?, size = size - length(answer) + ? "
        "WHERE id = ? AND status = 'in_progress'",
        (status, answer, len(answer), id),
    )
    _trim(database, max_bytes, now)
    return changed.rowcount == 1


def _cancel(database: sqlite3.Connection, id: str, now: Moment) -> Stored:
    if _get(database, id, now).status == "in_progress":
        database.execute("UPDATE responses SET status = 'cancelled' WHERE id = ?", (id,))
    return _get(database, id, now)


def _delete(database: sqlite3.Connection, id: str, now: Moment) -> None:
    _get(database, id, now)
    database.execute("DELETE FROM responses WHERE id = ?", (id,))


def _renew(database: sqlite3.Connection, ids: tuple[str, ...], lease: float) -> set[str]:
    query = "UPDATE responses SET lease = ? WHERE id = ? AND status = 'in_progress'"
    return {id for id in ids if database.execute(query, (lease, id)).rowcount}


def _size(*texts: bytes) -> int:
    return 200 + sum(map(len, texts))
