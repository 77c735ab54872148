"""/v1/responses in the background and streamed: left, taken up again anywhere, and ended whatever happens."""

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from quire.frontend.http.openai.responses import database, event_log, follow, store
from quire.frontend.http.openai.responses.clocks import ClockReading
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from asked import PATH, ask, events, run

TEXT = "the quick brown fox jumps over the lazy dog"


async def read(w, path: str, num_events: int) -> list[dict[str, object]]:
    """The first events of a stream, whose client then leaves."""
    found = b""
    method, fields = ("GET", {}) if "?" in path else ("POST", {"input": "hello", "background": True, "stream": True})
    async with w.client.stream(method, path, json=fields or None) as answer:
        async for piece in answer.aiter_bytes():
            found += piece
            if found.count(b"\n\n") >= num_events:
                return events(found.decode())[:num_events]
    raise AssertionError(f"the stream ended early: {found!r}")


def test_a_stream_that_its_client_left_goes_on_and_is_taken_up_at_any_event(web, tokenizer, tmp_path):
    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            ids = tokenizer.encode(TEXT).ids
            reading = asyncio.create_task(read(w, PATH, 3))
            submit = await w.scheduler.submitted()
            w.scheduler.outputs(submit.number, [(0, 0, ids[0])])
            begun = await reading
            assert [event["type"] for event in begun] == [
                "response.created", "response.in_progress", "response.output_item.added"]  # fmt: skip
            path = f"{PATH}/{begun[0]['response']['id']}"
            assert (await w.client.get(path)).json()["status"] == "in_progress"
            following = asyncio.create_task(w.client.get(f"{path}?stream=true&starting_after=1"))
            elsewhere = asyncio.create_task(told_by_another_frontend(tmp_path, begun[0]["response"]["id"], 1))
            for position, token in enumerate(ids[1:], 1):
                w.scheduler.outputs(submit.number, [(0, position, token)])
            w.scheduler.outputs(submit.number, [], [w.scheduler.finish(submit.number, len(ids))])
            rest = events((await following).text)
            assert [event["sequence_number"] for event in rest] == list(range(2, 2 + len(rest)))
            last = rest[-1]["response"]
            assert (last["status"], last["output"][0]["content"][0]["text"]) == ("completed", TEXT)
            assert (await w.client.get(path)).json() == last
            assert await elsewhere == rest
            everything = events((await w.client.get(f"{path}?stream=true")).text)
            assert everything == begun[:2] + rest
            assert await told_by_another_frontend(tmp_path, last["id"], -1) == everything
            for number in (1, len(everything) - 2, len(everything) - 1):
                later = (await w.client.get(f"{path}?stream=true&starting_after={number}")).text
                assert (events(later) if later else []) == everything[number + 1 :]

    run(main)


async def told_by_another_frontend(directory: Path, id: str, after: int) -> list[dict[str, object]]:
    other = ResponseStore(str(directory), 1 << 20)
    return events(b"".join([piece async for piece in follow.follow(other, None, id, after)]).decode())


def test_a_stream_that_is_cancelled_or_whose_request_fails_says_so(web):
    async def main():
        async with web() as w:
            reading = asyncio.create_task(ask(w, background=True, stream=True))
            submit = await w.scheduler.submitted()
            id = submit.label
            w.scheduler.outputs(submit.number, [(0, 0, 75)])
            assert (await w.client.post(f"{PATH}/{id}/cancel")).json()["status"] == "cancelled"
            last = events((await reading).text)[-1]
            assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
            w.answers([75], "error", error="NUMERICAL")
            last = events((await ask(w, background=True, stream=True)).text)[-1]
            assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
            refused = await ask(w, background=True, stream=True, input="x" * 600)
            assert refused.json()["error"]["code"] == "context_length_exceeded"

    run(main)


def test_a_stream_whose_frontend_died_ends_as_failed(tmp_path, clock):
    async def main():
        dying = ResponseStore(str(tmp_path), 1 << 20)
        await dying.put("a", "", "in_progress", b"[]", b'{"status":"in_progress"}')
        log = event_log.EventLog(dying, "a")
        await log.begin()
        log.append([b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'])
        await log.keep()
        clock[0] += store.LEASE_SECONDS * 1.1
        told = await told_by_another_frontend(tmp_path, "a", -1)
        assert [(one["type"], one["sequence_number"]) for one in told] == [
            ("response.created", 0), ("response.failed", 1)]  # fmt: skip
        assert told[1]["response"]["status"] == "failed"
        await dying.delete("a")
        with pytest.raises(RequestError, match="not stored here"):
            await told_by_another_frontend(tmp_path, "a", -1)

    run(main)


def test_what_was_made_without_a_stream_has_none(web):
    async def main():
        async with web() as w:
            w.answers([75])
            for fields in ({"background": True}, {"stream": True}, {}):
                made = await ask(w, **fields)
                id = events(made.text)[0]["response"]["id"] if "stream" in fields else made.json()["id"]
                error = (await w.client.get(f"{PATH}/{id}?stream=true")).json()["error"]
                assert (error["param"], error["code"]) == ("stream", "unsupported")

    run(main)


def item(number: int, name: str = "response.output_text.delta") -> bytes:
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":{number}}}\n\n'.encode()


async def told_by_its_maker(kept: ResponseStore, log: event_log.EventLog, after: int) -> list[int]:
    told = b"".join([piece async for piece in follow.follow(kept, log, "a", after)])
    return [event["sequence_number"] for event in events(told.decode())]


async def streaming(directory: Path, max_bytes: int) -> tuple[ResponseStore, event_log.EventLog]:
    kept = ResponseStore(str(directory), max_bytes)
    await kept.put("a", "", "in_progress", b"[]", b'{"status":"in_progress"}')
    log = event_log.EventLog(kept, "a")
    await log.begin()
    return kept, log


def test_events_are_held_until_they_are_stored_and_told_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "STORE_SECONDS", 0.0)

    async def main():
        kept, log = await streaming(tmp_path, 1 << 20)
        live = asyncio.create_task(told_by_its_maker(kept, log, -1))
        for number in range(40):  # more pieces than are read at once
            log.append([item(2 * number), item(2 * number + 1)])
            await log.keep()
            assert kept.held_bytes == 0
        log.append([item(80, "response.completed")])
        assert await live == await told_by_its_maker(kept, log, -1) == list(range(81))
        assert await told_by_its_maker(kept, log, 70) == list(range(71, 81))
        assert kept.held_bytes == len(item(80, "response.completed"))
        log.end()
        assert kept.held_bytes == 0

    run(main)


@pytest.mark.parametrize(("room", "left"), [(250, [100, 200, 300]), (150, [200, 300]), (-500, [300])])
def test_a_full_store_lets_go_of_a_streams_oldest_events_and_of_no_more(tmp_path, room, left):
    """A store with `room` for the first three pieces of 100 bytes; the newest one is always kept."""
    opened, now = database.open_database(str(tmp_path / "responses.db")), ClockReading(1e9, 1.0)
    stored = database.StoredResponse("a", "", "in_progress", now.wall, now.steady + 1, b"[]", b"{}")
    database.put(opened, stored, [], 1 << 20, now)
    (size,) = opened.execute("SELECT size FROM responses").fetchone()
    for number in (0, 100, 200):
        database.append_events(opened, "a", number, b"x" * 100, 1 << 20, now)
    database.append_events(opened, "a", 300, b"x" * 100, size + 100 + room, now)
    assert [first for (first,) in opened.execute("SELECT first FROM events ORDER BY first")] == left


def test_events_that_a_failing_store_does_not_take_are_bounded(tmp_path, monkeypatch):
    """Whoever waits for one that was dropped is told so, and where to go on."""

    def full(*arguments: object) -> None:
        raise RequestError("RECOVERING", "its disk is full")

    async def main():
        kept, log = await streaming(tmp_path, 1 << 20)
        monkeypatch.setattr(event_log, "STORE_SECONDS", 0.0)
        monkeypatch.setattr(event_log, "MAX_HELD_BYTES", 10 * len(item(10)))
        with monkeypatch.context() as failing:
            failing.setattr(store.database, "append_events", full)
            for number in range(100):
                log.append([item(number)])
                await log.keep()
                assert kept.held_bytes <= event_log.MAX_HELD_BYTES
        with pytest.raises(ParameterError, match=r"starting_after: events 3 to \d+ are no longer kept; start after"):
            await told_by_its_maker(kept, log, 2)
        await log.keep()
        log.append([item(100, "response.completed")])
        assert await told_by_its_maker(kept, log, 97) == [98, 99, 100]
        with pytest.raises(ParameterError, match="events 3 to"):
            await told_by_another_frontend(tmp_path, "a", 2)

    run(main)


def test_events_do_not_outgrow_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "STORE_SECONDS", 0.0)

    async def main():
        kept, log = await streaming(tmp_path, 4000)
        for number in range(200):
            log.append([item(number)])
            await log.keep()
        sizes = sqlite3.connect(tmp_path / store.FILE_NAME).execute("SELECT size FROM responses").fetchall()
        assert 2000 < sizes[0][0] <= 4000
        with pytest.raises(ParameterError, match=r"events 0 to .* retrieve the response without stream"):
            await told_by_another_frontend(tmp_path, "a", -1)
        log.append([item(200, "response.completed")])
        assert await told_by_its_maker(kept, log, 195) == list(range(196, 201))

    run(main)


def test_a_client_that_comes_back_too_late_gets_an_error_of_its_field(web, tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "STORE_SECONDS", 0.0)

    async def main():
        async with web(run_dir=str(tmp_path)) as w:
            w.answers([75])
            made = events((await ask(w, background=True, stream=True)).text)[-1]["response"]
            with sqlite3.connect(tmp_path / store.FILE_NAME) as database:
                database.execute("DELETE FROM events WHERE first = 0")
            refused = await w.client.get(f"{PATH}/{made['id']}?stream=true")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")

    run(main)
