"""The database of stored responses: its schema, its opening and its queries."""

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from quire.frontend.http.openai.responses.clocks import ClockReading, boot_id
from quire.proto.api import RequestError

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

MAX_AGE_SECONDS = 30 * 86_400.0
BUSY_SECONDS = 5.0
"""Time to wait for a database that another process keeps locked."""
RETRY_SECONDS = 0.01
GONE = "the frontend that made this response ended before it could store it, or its store failed"
MAX_CHAIN = 1000
"""Most responses of which each continues the one before."""
MAX_PIECES = 16
"""Most pieces of events that are read, or dropped, at once."""
ITEM_BYTES = 120
"""Bytes that an item's place costs, its index included."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, previous TEXT NOT NULL, status TEXT NOT NULL, created REAL NOT NULL, lease REAL NOT NULL,
    size INTEGER NOT NULL, input BLOB NOT NULL, answer BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON responses (created, status, size);
CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, response TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_response ON items (response);
CREATE TABLE IF NOT EXISTS events (
    response TEXT NOT NULL, first INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (response, first)
);
CREATE TRIGGER IF NOT EXISTS deleted AFTER DELETE ON responses BEGIN
    DELETE FROM items WHERE response = old.id;
    DELETE FROM events WHERE response = old.id;
END;
"""
SELECT = "SELECT id, previous, status, created, lease, input, answer FROM responses WHERE id = ?"
GROW = "UPDATE responses SET size = size + ? WHERE id = ?"


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response. `input` and `answer` are JSON: the request's own items, and the response object."""

    id: str
    previous: str
    """Id of the response this one continues; empty: none."""
    status: ResponseStatus
    created: float
    """Seconds since 1970."""
    lease: float
    """End of its frontend's lease on it: `ClockReading.steady` of the boot that the database knows."""
    input: bytes
    answer: bytes

    @property
    def items(self) -> list[msgspec.Raw]:
        """The items of its input, and those of its output."""
        input = msgspec.json.decode(self.input, type=list[msgspec.Raw])
        return input + msgspec.json.decode(self.answer, type=_Output).output

    @property
    def shown(self) -> bytes:
        """The response object, with the stored status where it was ended from outside."""
        answer: dict[str, Any] = msgspec.json.decode(self.answer)
        if answer["status"] == self.status:
            return self.answer
        answer["status"] = self.status
        if self.status == "failed":
            answer["error"] = {"code": "server_error", "message": GONE}
        return msgspec.json.encode(answer)


def open_database(path: str) -> sqlite3.Connection:
    """Open the database. Waits for frontends that do so too: to change the journal mode SQLite waits for nobody."""
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
            if result_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return database


def result_code(error: sqlite3.Error) -> int:
    """The low byte of SQLite's extended code; 0 for what Python's module raises by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _end_leases_of_another_boot(database: sqlite3.Connection) -> None:
    """End the leases given before this boot: their holders are gone, and the clock has begun anew."""
    this = boot_id()
    database.execute("BEGIN IMMEDIATE")
    if database.execute("SELECT id FROM boot").fetchall() != [(this,)]:
        database.execute("DELETE FROM boot")
        database.execute("INSERT INTO boot VALUES (?)", (this,))
        database.execute("UPDATE responses SET lease = -1 WHERE status = 'in_progress'")
    database.execute("COMMIT")


def put(
    database: sqlite3.Connection, stored: StoredResponse, item_ids: Sequence[str], max_bytes: int, now: ClockReading
) -> None:
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
    _put_items(database, stored.id, item_ids)
    _trim(database, max_bytes, now)


def _trim(database: sqlite3.Connection, max_bytes: int, now: ClockReading) -> int:
    """Delete the oldest responses that nobody is making; the bytes that are still too many."""
    idle = "(status != 'in_progress' OR lease < ?)"
    database.execute(f"DELETE FROM responses WHERE created < ? AND {idle}", (now.wall - MAX_AGE_SECONDS, now.steady))
    excess: int = database.execute("SELECT coalesce(sum(size), 0) FROM responses").fetchone()[0] - max_bytes
    query = f"SELECT id, size FROM responses WHERE {idle} ORDER BY created LIMIT 1"
    while excess > 0 and (oldest := database.execute(query, (now.steady,)).fetchone()) is not None:
        database.execute("DELETE FROM responses WHERE id = ?", oldest[:1])
        excess -= oldest[1]
    return excess


def get(database: sqlite3.Connection, id: str, now: ClockReading) -> StoredResponse:
    row = database.execute(SELECT, (id,)).fetchone()
    if row is None:
        raise RequestError("UNKNOWN_REQUEST", f"response {id!r} is not stored here: never was, deleted or too old")
    if row[2] == "in_progress" and row[4] < now.steady:
        database.execute("UPDATE responses SET status = 'failed' WHERE id = ?", (id,))
        row = database.execute(SELECT, (id,)).fetchone()
    return StoredResponse(*row)


def chain(database: sqlite3.Connection, id: str, now: ClockReading) -> list[StoredResponse]:
    chain = [get(database, id, now)]
    while chain[-1].previous and len(chain) < MAX_CHAIN:
        chain.append(get(database, chain[-1].previous, now))
    return chain[::-1]


def _put_items(database: sqlite3.Connection, response: str, ids: Sequence[str]) -> None:
    """Remember where items stand. Only ids that the server made: what clients call theirs is no secret."""
    rows = [(id, response) for id in ids]
    database.executemany("INSERT OR IGNORE INTO items VALUES (?, ?)", rows)
    database.execute(GROW, (ITEM_BYTES * len(rows), response))


def holders(database: sqlite3.Connection, item_ids: Sequence[str], now: ClockReading) -> list[StoredResponse]:
    """The responses in whose input or output these items stand."""
    query = "SELECT response FROM items WHERE id = ?"
    found = {row[0]: None for id in item_ids for row in database.execute(query, (id,))}
    return [get(database, response, now) for response in found]


def append_events(
    database: sqlite3.Connection, id: str, first: int, data: bytes, max_bytes: int, now: ClockReading
) -> None:
    """Append events of a response, of which `first` is the number of the first one.

    What is being made may fill the database, too: then the response's own oldest events go.
    """
    _put_events(database, id, first, data)
    excess = _trim(database, max_bytes, now)
    query = "SELECT first, length(data) FROM events WHERE response = ? AND first BETWEEN 0 AND ? ORDER BY first LIMIT ?"
    oldest = database.execute(query, (id, first - 1, MAX_PIECES)).fetchall() if excess > 0 else []
    while excess > 0 and oldest:
        number, size = oldest.pop(0)
        database.execute("DELETE FROM events WHERE response = ? AND first = ?", (id, number))
        database.execute(GROW, (-size, id))
        excess -= size


def _put_events(database: sqlite3.Connection, id: str, first: int, data: bytes) -> None:
    if database.execute(GROW, (len(data), id)).rowcount:
        database.execute("INSERT INTO events VALUES (?, ?, ?)", (id, first, data))


def events(
    database: sqlite3.Connection, id: str, after: int, now: ClockReading
) -> tuple[StoredResponse, list[tuple[int, bytes]]]:
    """The response, and pieces of its events from the one on that holds number `after` + 1; none: it has no events."""
    query = """SELECT first, data FROM events WHERE response = ?1 AND first >= coalesce(
        (SELECT max(first) FROM events WHERE response = ?1 AND first <= ?2), 0) ORDER BY first LIMIT ?3"""
    return get(database, id, now), database.execute(query, (id, after + 1, MAX_PIECES)).fetchall()


def finish(
    database: sqlite3.Connection,
    id: str,
    status: ResponseStatus,
    answer: bytes,
    item_ids: Sequence[str],
    events: tuple[int, bytes] | None,
    max_bytes: int,
    now: ClockReading,
) -> bool:
    changed = database.execute(
        "UPDATE responses SET status = ?, answer = ?, size = size - length(answer) + ? "
        "WHERE id = ? AND status = 'in_progress'",
        (status, answer, len(answer), id),
    )
    if changed.rowcount:
        _put_items(database, id, item_ids)
        if events is not None:
            _put_events(database, id, *events)
    _trim(database, max_bytes, now)
    return changed.rowcount == 1


def cancel(database: sqlite3.Connection, id: str, now: ClockReading) -> StoredResponse:
    if get(database, id, now).status == "in_progress":
        database.execute("UPDATE responses SET status = 'cancelled' WHERE id = ?", (id,))
    return get(database, id, now)


def delete(database: sqlite3.Connection, id: str, now: ClockReading) -> None:
    get(database, id, now)
    database.execute("DELETE FROM responses WHERE id = ?", (id,))


def renew(database: sqlite3.Connection, ids: tuple[str, ...], lease: float) -> set[str]:
    query = "UPDATE responses SET lease = ? WHERE id = ? AND status = 'in_progress'"
    return {id for id in ids if database.execute(query, (lease, id)).rowcount}


def _size(*texts: bytes) -> int:
    return 200 + sum(map(len, texts))
