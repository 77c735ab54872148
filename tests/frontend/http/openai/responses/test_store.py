"""The store of responses: shared by processes, bounded, and mended by itself."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from parts import forked

from quire.frontend.http.openai.responses import database as response_database
from quire.frontend.http.openai.responses import store as response_store
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.proto.api import RequestError

FRONTEND = """
import asyncio, sys
from quire.frontend.http.openai.responses.store import ResponseStore
name, *directories = sys.argv[1:]
async def main():
    for directory in directories:
        print("here", flush=True)
        sys.stdin.readline()
        await ResponseStore(directory, 1 << 20).put(name, "", "completed", b"[]", b"{}")
asyncio.run(main())
"""


def run(main) -> None:
    asyncio.run(main())


def test_what_one_frontend_stores_another_reads_and_continues(tmp_path: Path) -> None:
    async def main() -> None:
        one, other = (ResponseStore(str(tmp_path), 1 << 20) for _ in range(2))
        await one.put("a", "", "completed", b"[1]", b"{}")
        await other.put("b", "a", "completed", b"[2]", b"{}")
        assert [(stored.id, stored.input) for stored in await one.chain("b")] == [("a", b"[1]"), ("b", b"[2]")]
        await other.delete("a")
        with pytest.raises(RequestError) as caught:
            await one.chain("b")
        assert (caught.value.reason, "'a'" in caught.value.message) == ("UNKNOWN_REQUEST", True)

    run(main)


@pytest.mark.parametrize(("num_frontends", "times"), [(3, 10), pytest.param(8, 20, marks=pytest.mark.thorough)])
def test_many_frontends_open_and_write_the_store_at_once(tmp_path: Path, num_frontends: int, times: int) -> None:
    """Many times, because SQLite refuses only who comes at the very moment another changes the journal mode."""
    directories = [tmp_path / str(number) for number in range(times)]
    for directory in directories:
        directory.mkdir()
    frontends = [
        forked.Popen(
            [sys.executable, "-P", "-c", FRONTEND, f"r{number}", *map(str, directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for number in range(num_frontends)
    ]
    for _ in directories:
        there = [frontend for frontend in frontends if frontend.stdout.readline()]
        for frontend in there:
            frontend.stdin.write("\n")
    assert [frontend.communicate()[1] for frontend in frontends] == [""] * num_frontends

    async def main() -> None:
        for directory in directories:
            store = ResponseStore(str(directory), 1 << 20)
            assert [await held(store, f"r{number}") for number in range(num_frontends)] == [True] * num_frontends

    run(main)


def test_a_store_that_another_frontend_is_making_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / response_store.FILE_NAME, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # before its journal is the one of many readers
    other.execute("CREATE TABLE other (id)")
    commit = threading.Timer(0.3, other.execute, ("COMMIT",))
    commit.start()

    async def main() -> None:
        store = ResponseStore(str(tmp_path), 1 << 20)
        await store.put("a", "", "completed", b"[]", b"{}")
        assert await held(store, "a")

    run(main)
    commit.join()
    other.close()


def test_a_store_that_stays_locked_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "BUSY_SECONDS", 0.1)
    other = sqlite3.connect(tmp_path / response_store.FILE_NAME, isolation_level=None)

    async def main() -> None:
        store = ResponseStore(str(tmp_path), 1 << 20)
        for _ in range(2):  # its first opening, then with what the first one left
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(RequestError, match="locked") as caught:
                await store.put("a", "", "completed", b"[]", b"{}")
            assert caught.value.retryable
            other.execute("COMMIT")
            await store.put("b", "", "completed", b"[]", b"{}")
            await store.delete("b")

    run(main)
    other.close()


def test_a_full_disk_fails_what_does_not_fit_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = ResponseStore(str(tmp_path), 1 << 30)
        await store.put("a", "", "completed", b"[]", b"{}")
        store._connection.execute("PRAGMA max_page_count = 64")
        for _ in range(2):
            with pytest.raises(RequestError, match="its disk is full; try later, or create with store") as caught:
                await store.put("b", "", "completed", b"[]", b"x" * (1 << 20))
            assert (caught.value.reason, caught.value.retryable) == ("RECOVERING", True)
            assert caught.value.retry_after_seconds == 1.0
            assert [await held(store, name) for name in "ab"] == [True, False]
        assert [one.message for one in caplog.records] == [
            f"responses: {tmp_path}/responses.sqlite3: database or disk is full: free some space there; "
            "none is stored meanwhile"
        ]
        await store.put("c", "", "completed", b"[]", b"{}")
        assert [await held(store, name) for name in "abc"] == [True, False, True]
        assert "are stored again" in caplog.records[1].message

    run(main)


def test_a_store_that_became_read_only_is_refused_until_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = ResponseStore(str(tmp_path), 1 << 30)
        await store.put("a", "", "completed", b"[]", b"{}")
        store._connection.execute("PRAGMA query_only = 1")
        for call in (store.delete, store.get):
            with pytest.raises(RequestError, match="its file cannot be written") as caught:
                await call("a")
            assert caught.value.reason == "RECOVERING"
        store._connection.execute("PRAGMA query_only = 0")
        await store.delete("a")
        assert len(caplog.records) == 2

    run(main)


def test_a_store_whose_file_cannot_be_opened_or_read_is_refused_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / response_store.FILE_NAME

    async def main() -> None:
        store = ResponseStore(str(tmp_path), 1 << 30)
        file.mkdir()
        with pytest.raises(RequestError, match="its file cannot be opened"):
            await store.get("a")
        file.rmdir()
        file.write_bytes(b"this is no database " * 100)
        with pytest.raises(RequestError, match="its file is damaged"):
            await store.get("a")
        file.unlink()
        await store.put("a", "", "completed", b"[]", b"{}")
        assert len(caplog.records) == 3

    run(main)


def test_a_disk_that_fails_is_no_bug_and_what_is_one_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(code: int) -> None:
        def put(*arguments: object) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error

        monkeypatch.setattr(response_database, "put", put)

    async def main() -> None:
        store = ResponseStore(str(tmp_path), 1 << 30)
        failing(sqlite3.SQLITE_IOERR_FSYNC)
        with pytest.raises(RequestError, match="its disk does not read or write"):
            await store.put("a", "", "completed", b"[]", b"{}")
        failing(sqlite3.SQLITE_ERROR)
        with pytest.raises(sqlite3.OperationalError):
            await store.put("a", "", "completed", b"[]", b"{}")

    run(main)


def test_a_store_without_a_directory_is_kept_in_memory() -> None:
    async def main() -> None:
        store = ResponseStore("", 1 << 20)
        await store.put("a", "", "completed", b"[]", b"{}")
        assert (await store.get("a")).answer == b"{}"

    run(main)


def test_the_oldest_go_when_bytes_or_age_run_out(tmp_path: Path, clock: list[float]) -> None:
    async def main() -> None:
        store = ResponseStore(str(tmp_path), 5000)
        for name in "abcde":
            clock[0] += 1
            await store.put(name, "", "completed", b"[]", b"x" * 1000)
        assert [name for name in "abcde" if await held(store, name)] == ["b", "c", "d", "e"]
        clock[0] += response_database.MAX_AGE_SECONDS - 2.5
        await store.put("f", "", "completed", b"[]", b"{}")
        assert [name for name in "abcdef" if await held(store, name)] == ["c", "d", "e", "f"]

    run(main)


def test_what_is_being_made_is_not_evicted_and_what_would_not_fit_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        store = ResponseStore(str(tmp_path), 2000)
        await store.put("slow", "", "in_progress", b"x" * 1500, b"{}")
        await store.put("done", "", "completed", b"x" * 1500, b"{}")
        assert (await held(store, "slow"), await held(store, "done")) == (True, False)
        with pytest.raises(RequestError) as caught:
            await store.put("more", "", "in_progress", b"x" * 1500, b"{}")
        assert caught.value.reason == "QUEUE_FULL"
        assert caught.value.retryable

    run(main)


def test_the_maker_of_a_cancelled_or_deleted_response_hears_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        maker, other = (ResponseStore(str(tmp_path), 1 << 20) for _ in range(2))
        for name in "abc":
            await maker.put(name, "", "in_progress", b"[]", b"{}")
        assert (await other.cancel("a")).status == "cancelled"
        await other.delete("b")
        assert await maker.renew("abc") == {"c"}
        assert not await maker.finish("a", "completed", b"{}")
        assert await maker.finish("c", "completed", b"{}")
        assert (await other.cancel("c")).status == "completed"

    run(main)


async def held(store: ResponseStore, name: str) -> bool:
    try:
        return bool(await store.get(name))
    except RequestError:
        return False
