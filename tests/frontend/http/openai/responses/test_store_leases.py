"""Leases of the responses that are being made: a maker that died is noticed, one that lives keeps them."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from quire.frontend.http.openai.responses import clocks
from quire.frontend.http.openai.responses import database as response_database
from quire.frontend.http.openai.responses import store as response_store
from quire.frontend.http.openai.responses.store import ResponseStore


def run(main) -> None:
    asyncio.run(main())


def test_a_response_whose_maker_died_is_failed_and_one_whose_lease_is_renewed_is_not(
    tmp_path: Path, clock: list[float]
) -> None:
    async def main() -> None:
        dying, living = (ResponseStore(str(tmp_path), 1 << 20) for _ in range(2))
        await dying.put("a", "", "in_progress", b"[]", b"{}")
        await living.put("b", "", "in_progress", b"[]", b"{}")
        for _ in range(3):
            clock[0] += response_store.LEASE_SECONDS * 0.6
            assert await living.renew(["b"]) == {"b"}
        assert (await living.get("a")).status == "failed"
        assert (await living.get("b")).status == "in_progress"
        assert not await dying.finish("a", "completed", b"late")
        assert (await living.get("a")).answer == b"{}"

    run(main)


@pytest.mark.parametrize("step", [10.5, 86_400.0, -86_400.0])
def test_a_step_of_the_wall_clock_loses_nothing_that_is_being_made(
    tmp_path: Path, clock: list[float], step: float
) -> None:
    async def main() -> None:
        maker, other = (ResponseStore(str(tmp_path), 1 << 20) for _ in range(2))
        await maker.put("a", "", "in_progress", b"[]", b"{}")
        clock[1] = step
        assert (await other.get("a")).status == "in_progress"
        clock[0] += response_store.LEASE_SECONDS * 1.1
        await maker.put("b", "", "in_progress", b"[]", b"{}")
        assert (await other.get("a")).status == "failed", "its maker has said nothing for longer than its lease"
        clock[1] = 0.0
        assert await maker.finish("b", "completed", b"{}")

    run(main)


def test_a_lease_of_another_boot_has_run_out_and_one_of_this_boot_outlives_an_opening(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock[0] = 500_000.0
        await ResponseStore(str(tmp_path), 1 << 20).put("before", "", "in_progress", b"[]", b"{}")
        await ResponseStore(str(tmp_path), 1 << 20).put("done", "", "completed", b"[]", b"{}")
        assert (await ResponseStore(str(tmp_path), 1 << 20).get("before")).status == "in_progress"
        monkeypatch.setattr(response_database, "boot_id", lambda: "another")
        clock[0] = 3.0
        store = ResponseStore(str(tmp_path), 1 << 20)
        assert (await store.get("before")).status == "failed"
        assert (await store.get("done")).status == "completed"
        await store.put("after", "", "in_progress", b"[]", b"{}")
        assert (await ResponseStore(str(tmp_path), 1 << 20).get("after")).status == "in_progress"

    run(main)


def test_a_store_of_before_leases_had_a_boot_is_read_and_its_makers_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        with closing(sqlite3.connect(tmp_path / response_store.FILE_NAME)) as old:
            old.executescript(response_database.SCHEMA.replace("CREATE TABLE IF NOT EXISTS boot", "-- "))
            row = ("a", "", "in_progress", 1.7e9, 1.7e9 + 10, 200, b"[]", b"{}")
            old.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            old.commit()
        assert (await ResponseStore(str(tmp_path), 1 << 20).get("a")).status == "failed"

    run(main)


def test_processes_of_one_machine_read_the_same_clock_and_boot() -> None:
    code = (
        "from quire.frontend.http.openai.responses.clocks import boot_id, read_clocks; print(boot_id(), *read_clocks())"
    )
    before = clocks.read_clocks()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == clocks.boot_id() != ""
    assert before.steady <= float(said[2]) <= clocks.read_clocks().steady
