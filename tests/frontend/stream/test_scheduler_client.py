"""The scheduler goes, stalls, forgets, returns: no token is lost, none is shown twice, nobody waits for ever."""

import asyncio
import time

import msgspec
import numpy as np
import pytest

from quire.frontend.stream.prepared_request import PreparedRequest
from quire.proto.api import Delta, Finished, GenerateRequest, RequestError
from quire.proto.messages.requests import PROTOCOL_VERSION, Refused, Welcome


def start_reading(s, request) -> "tuple[asyncio.Task[None], list]":
    events: list = []

    async def read() -> None:
        async for event in s.client.stream(request):
            events.append(event)

    return asyncio.create_task(read()), events


def ids_of(events, index=0) -> list[int]:
    return [t for e in events if isinstance(e, Delta) and e.output_index == index for t in e.token_ids]


def resumed_of(submit) -> list[list[int]]:
    return [np.frombuffer(column, "<i4").tolist() for column in submit.resumed]


def test_a_new_scheduler_gets_prompt_and_delivered_tokens_and_the_stream_goes_on(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("the quick brown fox 🙂 jumps").ids
            reading, events = start_reading(s, GenerateRequest(input="hello", seed=9, max_tokens=50))
            old = await s.scheduler.submitted()
            s.scheduler.outputs(old.number, [(0, i, t) for i, t in enumerate(tokens[:4])])
            await s.until(lambda: len(ids_of(events)) == 4)
            await s.scheduler.__aexit__()
            await s.lose()
            async with s.new_scheduler(s.scheduler.address, life="life-2", state="starting") as second:
                await s.until(lambda: s.server.scheduler.state == "starting")
                with pytest.raises(RequestError, match="starting"):
                    await s.client.generate(GenerateRequest(input="x"))
                assert second.submits == []
                second.change("ready")
                new = await second.submitted()
                assert new.number != old.number
                assert (new.prompt, new.params, new.label, new.n) == (old.prompt, old.params, old.label, old.n)
                assert resumed_of(new) == [tokens[:4]]
                assert 0 < new.timeout_seconds < old.timeout_seconds
                second.outputs(old.number, [(0, 4, 1)])
                rest = [(0, 4 + i, t) for i, t in enumerate(tokens[4:])]
                second.outputs(new.number, rest, [second.finish(new.number, len(tokens))])
                await reading
                assert ids_of(events) == tokens
                assert "".join(e.text for e in events if isinstance(e, Delta)) == "the quick brown fox 🙂 jumps"
                assert events[-1].usage.num_restarts == 1
            await s.scheduler.__aenter__()

    asyncio.run(main())


def test_a_frontend_that_stood_still_itself_does_not_take_the_scheduler_for_lost(serving):
    """A busy machine, or a stop: the beats of that time wait in the socket, or were never due."""

    async def main():
        async with serving(lost_after_seconds=0.4) as s:
            reading, events = start_reading(s, GenerateRequest(input="hello", max_tokens=50))
            submit = await s.scheduler.submitted()
            for _ in range(3):
                time.sleep(0.6)  # longer than the scheduler may be silent
                await asyncio.sleep(0.06)
            s.scheduler.answer(submit.number, [70, 71])
            await reading
            assert ids_of(events) == [70, 71]
            assert len(s.scheduler.submits) == 1

    asyncio.run(main())


def test_outputs_that_had_ended_are_not_run_again(serving):
    async def main():
        async with serving() as s:
            reading, events = start_reading(s, GenerateRequest(input="hello", n=3, stop=("zzz",)))
            old = await s.scheduler.submitted()
            s.scheduler.answer(old.number, [70, 71], index=1)
            s.scheduler.outputs(old.number, [(0, 0, 72)])
            await s.until(lambda: any(isinstance(e, Finished) for e in events) and ids_of(events) == [72])
            s.scheduler.life = "life-2"
            s.scheduler.peers.clear()
            new = await s.scheduler.submitted(2)
            assert new.finished_outputs == (1,)
            assert resumed_of(new) == [[72], [70, 71], []]
            s.scheduler.outputs(new.number, [(0, 1, 73)], [s.scheduler.finish(new.number, 2)])
            s.scheduler.answer(new.number, [74], index=2)
            await reading
            assert [ids_of(events, index) for index in range(3)] == [[72, 73], [70, 71], [74]]
            assert sum(isinstance(e, Finished) for e in events) == 3

    asyncio.run(main())


def test_an_output_ended_by_a_stop_string_ends_even_if_its_scheduler_died(serving, tokenizer):
    async def main():
        async with serving() as s:
            reading, events = start_reading(s, GenerateRequest(input="hello", stop=("fox",)))
            number = (await s.scheduler.submitted()).number
            tokens = tokenizer.encode("the fox").ids
            s.scheduler.outputs(number, [(0, i, t) for i, t in enumerate(tokens)])
            await s.until(lambda: bool(s.scheduler.aborts))
            s.scheduler.life = "life-2"
            s.scheduler.peers.clear()
            await reading
            assert events[-1].stop_string == "fox"
            assert len(s.scheduler.submits) == 1

    asyncio.run(main())


def test_a_scheduler_that_stalled_in_the_same_life_is_told_to_forget_the_old_numbers(serving):
    async def main():
        async with serving(lost_after_seconds=2.0) as s:
            reading, events = start_reading(s, GenerateRequest(input="hello"))
            old = await s.scheduler.submitted()
            s.scheduler.outputs(old.number, [(0, 0, 70)])
            await s.until(lambda: ids_of(events) == [70])
            s.scheduler.muted = True
            await s.until(lambda: s.server.scheduler.state == "lost")
            s.scheduler.muted = False
            new = await s.scheduler.submitted(2)
            assert s.scheduler.aborts[0].numbers == (old.number,)
            s.scheduler.outputs(old.number, [(0, 1, 99)], [s.scheduler.finish(old.number, 2, "abort")])
            s.scheduler.outputs(new.number, [(0, 1, 71)], [s.scheduler.finish(new.number, 2)])
            await reading
            assert ids_of(events) == [70, 71]

    asyncio.run(main())


def test_missing_tokens_make_the_request_run_again_from_what_was_delivered(serving):
    async def main():
        async with serving() as s:
            reading, events = start_reading(s, GenerateRequest(input="hello"))
            first = await s.scheduler.submitted()
            s.scheduler.outputs(first.number, [(0, 0, 70)])
            s.scheduler.outputs(first.number, [(0, 2, 72)])
            second = await s.scheduler.submitted(2)
            assert resumed_of(second) == [[70]]
            s.scheduler.outputs(second.number, [], [s.scheduler.finish(second.number, 5, "stop")])
            third = await s.scheduler.submitted(3)
            assert [abort.numbers for abort in s.scheduler.aborts] == [(first.number,), (second.number,)]
            s.scheduler.answer(third.number, [70, 71])
            await reading
            assert ids_of(events) == [70, 71]

    asyncio.run(main())


def test_a_request_is_resumed_only_so_often(serving):
    async def main():
        async with serving(max_resumes=1) as s:
            reading, events = start_reading(s, GenerateRequest(input="hello"))
            s.scheduler.outputs((await s.scheduler.submitted(1)).number, [(0, 5, 70)])
            s.scheduler.outputs((await s.scheduler.submitted(2)).number, [(0, 0, 70), (0, 5, 70)])
            with pytest.raises(RequestError) as caught:
                await reading
            assert caught.value.reason == "SCHEDULER_LOST"
            assert events[-1].error.reason == "SCHEDULER_LOST"

    asyncio.run(main())


def test_what_the_scheduler_forgot_for_want_of_beats_costs_no_resume_and_its_death_does(serving):
    """A frontend that stood still for longer than its lease: that speaks against no request."""

    async def main():
        async with serving(max_resumes=1) as s:
            reading, events = start_reading(s, GenerateRequest(input="hello"))
            for count in range(1, 4):
                s.scheduler.outputs((await s.scheduler.submitted(count)).number, [(0, count - 1, 69 + count)])
                await s.until(lambda count=count: len(ids_of(events)) == count)
                s.scheduler.peers.clear()
            await s.scheduler.submitted(4)
            s.scheduler.life = "life-2"
            s.scheduler.peers.clear()
            last = await s.scheduler.submitted(5)
            s.scheduler.peers.clear()
            last = await s.scheduler.submitted(6)
            s.scheduler.outputs(last.number, [(0, 3, 73)], [s.scheduler.finish(last.number, 4)])
            await reading
            assert ids_of(events) == [70, 71, 72, 73]
            assert events[-1].usage.num_restarts == 5
            doomed, _ = start_reading(s, GenerateRequest(input="hello"))
            await s.scheduler.submitted(7)
            for life in ("life-3", "life-4"):
                await s.ready()
                s.scheduler.life = life
                s.scheduler.peers.clear()
                await s.until(lambda life=life: s.server.scheduler.welcome.life == life)
            with pytest.raises(RequestError, match="lost too often"):
                await doomed

    asyncio.run(main())


def test_requests_wait_for_the_window_and_then_end_unavailable(serving):
    async def main():
        async with serving(resume_window_seconds=0.5) as s:
            reading, events = start_reading(s, GenerateRequest(input="hello"))
            await s.scheduler.submitted(1)
            fresh = asyncio.create_task(s.client.generate(GenerateRequest(input="x")))
            await s.scheduler.submitted(2)
            s.scheduler.outputs(s.scheduler.submits[0].number, [(0, 0, 70)])
            await s.until(lambda: len(events) == 2)
            await s.lose()
            with pytest.raises(RequestError, match="lost") as caught:
                await s.client.generate(GenerateRequest(input="x"))
            assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", "SCHEDULER_LOST")
            for task in (reading, fresh):
                with pytest.raises(RequestError) as caught:
                    await task
                assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", "SCHEDULER_LOST")
            assert isinstance(events[-1], Finished)
            assert events[-1].error.retryable
            s.scheduler.muted = False
            await s.ready()
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            assert (await s.client.generate(GenerateRequest(input="x"))).outputs

    asyncio.run(main())


def test_a_scheduler_that_comes_back_draining_lets_what_was_accepted_end(serving):
    async def main():
        async with serving() as s:
            reading, events = start_reading(s, GenerateRequest(input="hello"))
            await s.scheduler.submitted()
            facts, s.scheduler.facts = s.scheduler.facts, None
            s.scheduler.life, s.scheduler.state = "life-2", "draining"
            s.scheduler.peers.clear()
            await s.until(lambda: s.server.scheduler.state == "draining")
            await asyncio.sleep(0.2)  # its workers load
            assert len(s.scheduler.submits) == 1
            s.scheduler.facts = facts
            s.scheduler.change("draining")
            again = await s.scheduler.submitted(2)
            assert again.accepted
            s.scheduler.answer(again.number, [70])
            await reading
            assert ids_of(events) == [70]

    asyncio.run(main())


def test_a_scheduler_that_comes_back_failed_ends_the_waiting_requests(serving):
    async def main():
        async with serving() as s:
            reading, _ = start_reading(s, GenerateRequest(input="hello"))
            await s.scheduler.submitted()
            s.scheduler.life, s.scheduler.state = "life-2", "failed"
            s.scheduler.peers.clear()
            with pytest.raises(RequestError) as caught:
                await reading
            assert caught.value.reason == "FAILED"

    asyncio.run(main())


def test_another_protocol_version_is_never_ready(serving):
    async def main():
        async with serving() as s:
            welcome = s.scheduler.welcome()
            s.scheduler.welcome = lambda: Welcome(
                PROTOCOL_VERSION + 1, "life-9", "ready", welcome.limits, welcome.facts
            )
            s.scheduler.send(s.scheduler.welcome())
            await s.until(lambda: s.server.scheduler.state == "lost")
            assert str(PROTOCOL_VERSION + 1) in s.server.scheduler.detail
            s.scheduler.send(Refused("protocol version 1 of the frontend is not 2"))
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input="x"))
            assert caught.value.status == "UNAVAILABLE"

    asyncio.run(main())


def test_a_request_without_time_left_is_submitted_as_such(serving):
    """A minimum of time instead would let it be answered or not, as the scheduler's next tick comes."""

    async def main():
        async with serving() as s:
            seen = []

            def expire(submit):
                seen.append(submit.timeout_seconds)
                s.scheduler.outputs(submit.number, [], [s.scheduler.finish(submit.number, 0, "deadline")])

            s.scheduler.script = expire
            with pytest.raises(RequestError) as failure:
                await s.client.generate(GenerateRequest(input="x", timeout_seconds=1e-300))
            assert failure.value.reason == "DEADLINE"
            assert seen
            assert max(seen) <= 0

    asyncio.run(main())


@pytest.mark.parametrize("priority", [1 << 70, object()])
def test_a_request_that_no_message_can_hold_fails_alone(serving, monkeypatch, priority):
    """An integer beyond 64 bits, and what has no place in a message, stand for any defect of what was prepared."""
    submit_of = PreparedRequest.submit

    def too_large(prepared, *args, **more):
        submit = submit_of(prepared, *args, **more)
        return msgspec.structs.replace(submit, priority=priority) if prepared.n == 2 else submit

    monkeypatch.setattr(PreparedRequest, "submit", too_large)

    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            for _ in range(2):
                good, bad = await asyncio.gather(
                    s.client.generate(GenerateRequest(input="hello", max_tokens=1)),
                    s.client.generate(GenerateRequest(input="hello", max_tokens=1, n=2)),
                    return_exceptions=True,
                )
                assert list(good.outputs[0].token_ids) == [70]
                assert isinstance(bad, RequestError)
                assert (bad.reason, bad.status) == ("BUG", "INTERNAL")
                assert "Submit does not encode" in bad.message
            assert s.server.scheduler.num_streams == 0

    asyncio.run(main())
