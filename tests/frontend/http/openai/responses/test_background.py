"""/v1/responses in the background: made, cancelled, failed, and what a full disk does to them."""

import asyncio
import gc
import sqlite3
import sys
from pathlib import Path

import pytest

from quire.frontend.http.openai.responses import database as response_database
from quire.frontend.http.openai.responses import store as response_store
from quire.proto.messages.requests import Abort

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from asked import PATH, ask, events, run
from parts.clock import GUARD


async def settled(w, path: str) -> dict[str, object]:
    async with asyncio.timeout(GUARD):
        while (answer := (await w.client.get(path)).json())["status"] == "in_progress":
            await asyncio.sleep(0.01)
        return answer


def test_a_response_is_made_in_the_background(web, tokenizer):
    async def main():
        async with web() as w:
            made = (await ask(w, background=True)).json()
            assert (made["status"], made["background"], made["output"]) == ("in_progress", True, [])
            path = f"{PATH}/{made['id']}"
            assert (await w.client.get(path)).json() == made
            submit = await w.scheduler.submitted()
            w.scheduler.answer(submit.number, tokenizer.encode("hello world").ids, "stop")
            answer = await settled(w, path)
            assert (answer["status"], answer["output"][0]["content"][0]["text"]) == ("completed", "hello world")

    run(main)


def test_a_background_response_that_fails_says_why(web):
    async def main():
        async with web() as w:
            w.answers([75], "error", error="NUMERICAL")
            made = (await ask(w, background=True)).json()
            answer = await settled(w, f"{PATH}/{made['id']}")
            assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")

    run(main)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's file never grows."""
    opened = response_store.open_database

    def full(path: str) -> sqlite3.Connection:
        database = opened(path)
        database.execute("PRAGMA max_page_count = 1")
        return database

    monkeypatch.setattr(response_store, "open_database", full)


LONG = {"metadata": {f"{number}": "x" * 500 for number in range(16)}}


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_refuses_what_is_to_be_stored_and_says_so_once(web, tmp_path, caplog):
    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            w.answers([75])
            for background in (False, True, False):
                refused = await ask(w, background=background, **LONG)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                error = refused.json()["error"]
                assert (error["type"], error["code"]) == ("service_unavailable_error", "recovering")
                assert "its disk is full; try later, or create with store set to false" in error["message"]
            assert (await ask(w, store=False, **LONG)).status_code == 200
            assert sum("responses.sqlite3" in record.message for record in caplog.records) == 1
            assert not any(record.exc_info for record in caplog.records)

    run(main)


@pytest.mark.usefixtures("full_disk")
def test_a_stream_that_cannot_be_stored_ends_whole_and_says_that_it_is_not(web, tokenizer, tmp_path):
    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            w.answers(tokenizer.encode("hello world").ids, "stop")
            last = events((await ask(w, stream=True, **LONG)).text)[-1]
            made = last["response"]
            assert (last["type"], made["status"], made["store"]) == ("response.completed", "completed", False)
            assert made["output"][0]["content"][0]["text"] == "hello world"
            assert (await w.client.get(f"{PATH}/{made['id']}")).status_code == 404

    run(main)


def test_a_background_response_whose_end_cannot_be_stored_is_failed(web, tmp_path, monkeypatch, caplog):
    def finish(*arguments: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        raise error

    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            monkeypatch.setattr(response_store, "LEASE_SECONDS", 0.05)
            monkeypatch.setattr(response_database, "finish", finish)
            w.answers([75])
            made = (await ask(w, background=True)).json()
            answer = await settled(w, f"{PATH}/{made['id']}")
            assert (answer["status"], answer["error"]["code"]) == ("failed", "server_error")
            assert "or its store failed" in answer["error"]["message"]
        gc.collect()
        assert [record.message for record in caplog.records if "asyncio" in record.name] == []

    run(main)


def test_a_cancelled_background_response_stops_running_and_stays_cancelled(web):
    async def main():
        async with web() as w:
            made = (await ask(w, background=True)).json()
            path = f"{PATH}/{made['id']}"
            await w.scheduler.submitted()
            assert (await w.client.post(f"{path}/cancel")).json()["status"] == "cancelled"
            await w.until(lambda: any(isinstance(one, Abort) for one in w.scheduler.aborts))
            assert (await w.client.get(path)).json()["status"] == "cancelled"
            assert (await w.client.post(f"{path}/cancel")).json()["status"] == "cancelled"
            assert (await ask(w, previous_response_id=made["id"])).status_code == 400

    run(main)
