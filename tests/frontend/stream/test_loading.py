"""A new scheduler's workers load for longer than any scheduler may be missing: open requests wait, and lose nothing."""

import asyncio
import time

import pytest
import zmq

from quire.frontend.stream import step_progress
from quire.frontend.stream.loss_grace import LossGrace
from quire.proto.api import Delta, Finished, GenerateRequest, RequestError

LOADING = 800.0
"""More seconds than a scheduler may be missing, passed at once: the clock is the test's."""
LONG = {"startup_seconds": 3 * LOADING}


def read(s, **fields) -> "tuple[asyncio.Task[None], list]":
    events: list = []

    async def take() -> None:
        async for event in s.client.stream(GenerateRequest(input="hello", **fields)):
            events.append(event)

    return asyncio.create_task(take()), events


def ids_of(events) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids]


def test_grace_counts_anew_for_workers_and_for_every_loss():
    grace = LossGrace(scheduler_seconds=15.0, workers_seconds=600.0)
    assert not grace.is_waiting
    assert grace.expired(1e9) == ""
    grace.on_lost(100.0)
    grace.on_lost(110.0)  # still the same loss
    assert grace.expired(115.0) == ""
    assert "the scheduler did not come back within 15 s" in grace.expired(115.1)
    grace.on_found(114.0)
    grace.on_found(300.0)  # it says the same again
    assert grace.expired(714.0) == ""
    assert "workers" in grace.expired(714.1)
    grace.on_lost(400.0)  # the second one dies while its workers load
    assert grace.expired(415.0) == ""
    assert grace.expired(415.1)
    grace.on_found(410.0)
    grace.end()
    assert grace.expired(1e9) == ""


def test_what_a_frontend_itself_stood_still_costs_no_grace():
    grace = LossGrace(scheduler_seconds=15.0, workers_seconds=600.0)
    grace.on_lost(100.0)
    grace.add_pause(60.0, 165.0)
    assert grace.expired(175.0) == ""
    assert grace.expired(175.1)
    grace.on_lost(100.0)
    grace.on_found(170.0)  # heard right after a pause that began before
    grace.add_pause(60.0, 170.0)
    assert grace.expired(770.0) == ""
    assert grace.expired(770.1)


def test_a_frontend_does_not_count_its_own_pauses_as_waiting(serving):
    """The pause is longer than the window; all of the window is left when it ends."""

    async def main():
        async with serving(resume_window_seconds=1.5) as s:
            reading, _ = read(s)
            await s.scheduler.submitted()
            await s.lose()
            time.sleep(2.0)
            await asyncio.sleep(0.2)
            assert s.server.scheduler.is_waiting
            assert not reading.done()
            with pytest.raises(RequestError, match="did not come back within"):
                await reading

    asyncio.run(main())


def test_requests_outwait_the_loading_of_a_new_schedulers_workers(serving):
    """Also when that one dies, too, and the third one's workers load as long; meanwhile nobody is sent here."""

    async def main():
        async with serving(**LONG, http_port=0) as s:
            reading, events = read(s, timeout_seconds=3600.0)
            old = await s.scheduler.submitted()
            s.scheduler.outputs(old.number, [(0, 0, 70)])
            await s.until(lambda: ids_of(events) == [70])
            await s.scheduler.__aexit__()
            await s.lose()
            for life in ("life-2", "life-3"):
                async with s.new_scheduler(s.scheduler.address, life=life, state="starting") as second:
                    await s.until(lambda: s.server.scheduler.state == "starting")
                    assert not s.server.health.is_ready
                    with pytest.raises(RequestError) as refused:
                        await s.client.generate(GenerateRequest(input="x"))
                    assert refused.value.reason == "STARTING"
                    s.pass_time(LOADING)
                    await asyncio.sleep(0.2)
                    assert not reading.done()
                    assert second.submits == []
                    if life == "life-2":
                        continue
                    second.change("ready")
                    again = await second.submitted()
                    assert again.accepted
                    second.outputs(again.number, [(0, 1, 71)], [second.finish(again.number, 2)])
                    await reading
            assert ids_of(events) == [70, 71]
            assert events[-1].finish_reason == "stop"
            await s.scheduler.__aenter__()

    asyncio.run(main())


def test_workers_that_never_load_end_the_wait(serving):
    async def main():
        async with serving(startup_seconds=0.5) as s:
            reading, _ = read(s)
            await s.scheduler.submitted()
            s.scheduler.life, s.scheduler.state, s.scheduler.facts = "life-2", "starting", None
            s.scheduler.peers.clear()
            with pytest.raises(RequestError, match="workers of the new scheduler were not ready within") as caught:
                await reading
            assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", "SCHEDULER_LOST")

    asyncio.run(main())


@pytest.mark.parametrize("state", ["lost", "starting"])
def test_a_requests_own_deadline_ends_it_while_no_scheduler_counts(serving, state):
    """As a scheduler would: with the word `deadline` and what was delivered."""

    async def main():
        async with serving() as s:
            reading, events = read(s, timeout_seconds=500.0)
            old = await s.scheduler.submitted()
            s.scheduler.outputs(old.number, [(0, 0, 70)])
            await s.until(lambda: ids_of(events) == [70])
            if state == "lost":
                await s.lose()
            else:
                s.scheduler.life, s.scheduler.state, s.scheduler.facts = "life-2", "starting", None
                s.scheduler.peers.clear()
            await s.until(lambda: s.server.scheduler.state == state)
            assert not reading.done()
            s.pass_time(501.0)
            with pytest.raises(RequestError) as caught:
                await reading
            assert caught.value.reason == "DEADLINE"
            assert [e.finish_reason for e in events if isinstance(e, Finished)] == ["deadline"]
            assert events[-1].usage.completion_tokens == 1
            s.scheduler.muted = False

    asyncio.run(main())


def test_an_engine_that_loaded_for_long_is_not_stalled_when_it_is_ready(serving):
    """Between the welcome and the first step's beat its step counter has not moved for as long as it loaded."""

    async def main():
        async with serving(**LONG) as s:
            read(s, timeout_seconds=3600.0)
            await s.scheduler.submitted()
            s.scheduler.stands_still = True
            s.scheduler.life, s.scheduler.state = "life-2", "starting"
            s.scheduler.peers.clear()
            await s.until(lambda: s.server.scheduler.state == "starting")
            s.pass_time(2 * step_progress.STALLED_SECONDS)
            await asyncio.sleep(0.2)
            s.scheduler.change("ready")
            await s.until(lambda: s.server.scheduler.state == "ready")
            assert s.server.scheduler.progress() == "ready"
            s.pass_time(2 * step_progress.STALLED_SECONDS)
            await s.until(lambda: s.server.scheduler.progress() == "stalled")

    asyncio.run(main())


def test_what_no_scheduler_ever_got_is_not_sent_as_accepted(serving):
    """Between the death and its discovery requests stay here: the queue's bounds still apply to them."""

    async def main():
        async with serving() as s:
            read(s)
            await s.scheduler.submitted()
            await s.scheduler.__aexit__()
            socket = s.server.scheduler._dealer.socket
            await s.until(lambda: not socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT)  # nobody is connected any more
            assert s.server.scheduler.state == "ready"
            read(s, request_id="late")
            await s.until(lambda: s.server.scheduler.num_streams == 2)
            await s.lose()
            async with s.new_scheduler(s.scheduler.address, life="life-2") as second:
                await second.submitted(2)
                assert {submit.label == "late": submit.accepted for submit in second.submits} == {
                    False: True,
                    True: False,
                }
            await s.scheduler.__aenter__()

    asyncio.run(main())


def test_a_server_that_is_told_to_end_gives_those_who_wait_their_word(serving):
    """Who ends it may end the whole engine: a scheduler need not come any more."""

    async def main():
        async with serving(drain_seconds=3600.0) as s:
            reading, events = read(s)
            old = await s.scheduler.submitted()
            s.scheduler.outputs(old.number, [(0, 0, 70)])
            await s.until(lambda: ids_of(events) == [70])
            s.scheduler.life, s.scheduler.state, s.scheduler.facts = "life-2", "starting", None
            s.scheduler.peers.clear()
            await s.until(lambda: s.server.scheduler.is_waiting)
            s.server.drain()
            with pytest.raises(RequestError) as caught:
                await reading
            assert caught.value.reason == "SCHEDULER_LOST"
            assert isinstance(events[-1], Finished)

    asyncio.run(main())
