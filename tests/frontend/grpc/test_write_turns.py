"""Messages of many streams: who writes when, and that nothing is lost, repeated or held up by it."""

import asyncio
import time

import pytest

from quire.frontend.grpc import write_turns
from quire.frontend.grpc.corks import Corks
from quire.frontend.grpc.write_turns import MOST_WRITES, PAUSE_SECONDS, WriteTurns
from quire.proto.api import Delta, Finished, GenerateRequest, RequestError, Started
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

NUM_STREAMS = 24
NUM_TOKENS = 60


def test_few_messages_begin_without_a_turn_of_the_loop():
    async def main():
        turns = WriteTurns(Corks())
        others = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        for _ in range(MOST_WRITES):
            await turns.begin(is_first=False)
        assert not others

    asyncio.run(main())


def test_many_messages_begin_in_order_some_in_a_turn_and_first_messages_before_others():
    async def main():
        turns, begun, loop = WriteTurns(Corks(), 2), [], asyncio.get_running_loop()
        number_of_turn = 0

        def count() -> None:
            nonlocal number_of_turn
            number_of_turn += 1
            if len(begun) < 12:
                loop.call_soon(count)

        async def write(name: str, is_first: bool) -> None:
            await turns.begin(is_first)
            begun.append((number_of_turn, name))

        loop.call_soon(count)
        later = [asyncio.create_task(write(f"later {number}", False)) for number in range(10)]
        first = [asyncio.create_task(write(f"first {number}", True)) for number in range(2)]
        await asyncio.gather(*later, *first)
        names = [name for _, name in begun]
        assert names == ["later 0", "later 1", "first 0", "first 1", *(f"later {number}" for number in range(2, 10))]
        per_turn = [number for number, _ in begun]
        assert max(per_turn.count(number) for number in per_turn) == 2

    asyncio.run(main())


def test_others_have_turns_of_the_loop_between_two_in_which_streams_write():
    """An accepted call takes some five of them."""

    async def main():
        turns, begun, seen, loop = WriteTurns(Corks(), 2), 0, [], asyncio.get_running_loop()

        async def write() -> None:
            nonlocal begun
            await turns.begin(is_first=False)
            begun += 1
            time.sleep(PAUSE_SECONDS)

        def look() -> None:
            seen.append(begun)
            if begun < 10:
                loop.call_soon(look)

        loop.call_soon(look)
        await asyncio.gather(*(write() for _ in range(10)))
        assert [seen.count(number) >= 5 for number in (4, 6, 8)] == [True] * 3

    asyncio.run(main())


def test_messages_of_a_turn_are_written_between_a_cork_and_its_end():
    events = []

    class Noted(Corks):
        def hold(self) -> None:
            events.append("hold")

        def release(self) -> None:
            events.append("release")

    async def write(turns: WriteTurns) -> None:
        await turns.begin(is_first=False)
        events.append("write")

    async def main():
        turns = WriteTurns(Noted(), 2)
        await asyncio.gather(*(write(turns) for _ in range(6)))
        await asyncio.sleep(20 * PAUSE_SECONDS)

    asyncio.run(main())
    turn = ["hold", "write", "write", "release"]
    assert events == ["write", "write", *turn, *turn]  # those that did not wait, two turns, and no cork is left


def test_a_stream_that_is_cancelled_takes_nobodys_turn():
    async def main():
        turns, begun = WriteTurns(Corks(), 1), []

        async def write(number: int) -> None:
            await turns.begin(is_first=False)
            begun.append(number)

        tasks = [asyncio.create_task(write(number)) for number in range(6)]
        await asyncio.sleep(0)
        for number in (1, 2, 4):
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert begun == [0, 3, 5]

    asyncio.run(main())


def test_the_loop_sleeps_when_nothing_is_written(monkeypatch):
    """A turn that waited for the next one for ever would keep a core busy."""
    calls = []

    class Counted(WriteTurns):
        def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
            calls.append(loop)
            super()._on_turn(loop)

    async def main():
        turns = Counted(Corks(), 2)
        await asyncio.gather(*(turns.begin(is_first=False) for _ in range(5)))
        await asyncio.sleep(20 * PAUSE_SECONDS)
        most = len(calls)
        await asyncio.sleep(20 * PAUSE_SECONDS)
        assert 0 < len(calls) == most <= 4

    asyncio.run(main())


class Reading:
    """What one client read of one stream: joined, and in how many deltas."""

    def __init__(self, events) -> None:
        deltas = [event for event in events if isinstance(event, Delta)]
        self.num_deltas = len(deltas)
        self.text = "".join(delta.text for delta in deltas)
        self.token_ids = [token for delta in deltas for token in delta.token_ids]
        self.logprobs = [(one.token_id, one.logprob) for delta in deltas for one in delta.logprobs]
        self.finished = [event for event in events if isinstance(event, Finished)]


async def read(s, request: GenerateRequest) -> Reading:
    events = [event async for event in s.client.stream(request)]
    assert isinstance(events[0], Started)
    return Reading(events)


def give(s, submit, position: int, token: int, last: bool = False) -> None:
    """One step of one stream: a token, its logprob and, with the last, the end."""
    entry = OutputLogprobs(submit.number, 0, False, position, (PositionLogprobs(token, -0.5 * position, 1),))
    ends = [s.scheduler.finish(submit.number, position + 1, "length")] if last else []
    s.scheduler.outputs(submit.number, [(0, position, token)], ends, [entry])


def test_deltas_of_crowded_streams_are_those_of_a_lone_one_put_together(serving, tokenizer, monkeypatch):
    """Second messages have their turn once all tokens are there, so that they wait however fast the machine is."""
    begin, all_there = WriteTurns.begin, asyncio.Event()
    all_there.set()

    async def begin_late(self, is_first: bool) -> None:
        if not is_first:
            await all_there.wait()
        await begin(self, is_first)

    monkeypatch.setattr(WriteTurns, "begin", begin_late)
    text = (tokenizer.encode("the quick brown fox naïve café 日本語 🙂🙃 hello").ids * NUM_TOKENS)[:NUM_TOKENS]
    request = GenerateRequest(input="x", max_tokens=NUM_TOKENS, logprobs=0, return_token_ids=True, ignore_eos=True)

    async def main():
        async with serving() as s:
            alone = asyncio.create_task(read(s, request))
            submit = await s.scheduler.submitted()
            for position, token in enumerate(text):
                give(s, submit, position, token, position == NUM_TOKENS - 1)
                await asyncio.sleep(0.001)
            alone = await alone
            assert alone.token_ids == text
            crowd = [asyncio.create_task(read(s, request)) for _ in range(NUM_STREAMS)]
            await s.scheduler.submitted(1 + NUM_STREAMS)
            all_there.clear()
            streams = list(s.server.scheduler._streams)
            for position, token in enumerate(text):
                for submit in s.scheduler.submits[1:]:
                    give(s, submit, position, token, position == NUM_TOKENS - 1)
            await s.until(lambda: all(not stream.is_live for stream in streams))
            all_there.set()
            readings = await asyncio.gather(*crowd)
            assert all((one.text, one.token_ids) == (alone.text, alone.token_ids) for one in readings)
            assert all(one.logprobs == alone.logprobs and len(one.finished) == 1 for one in readings)
            assert min(one.num_deltas for one in readings) < NUM_TOKENS

    asyncio.run(main())


def test_cancelled_and_expired_streams_in_a_crowd_leave_the_others_whole(serving, tokenizer, monkeypatch):
    monkeypatch.setattr(write_turns.WriteTurns.__init__, "__defaults__", (1,))
    token = tokenizer.encode("hello").ids[0]
    request = GenerateRequest(input="x", max_tokens=NUM_TOKENS, return_token_ids=True, ignore_eos=True)

    async def main():
        async with serving() as s:
            crowd = [asyncio.create_task(read(s, request)) for _ in range(NUM_STREAMS)]
            await s.scheduler.submitted(NUM_STREAMS)
            numbers = [submit.number for submit in s.scheduler.submits]
            for position in range(NUM_TOKENS):
                for submit in s.scheduler.submits[:NUM_STREAMS]:
                    if submit.number in numbers[:2] and position >= NUM_TOKENS // 2:
                        continue  # these do not end by themselves
                    s.scheduler.outputs(
                        submit.number,
                        [(0, position, token)],
                        [s.scheduler.finish(submit.number, NUM_TOKENS, "length")] if position == NUM_TOKENS - 1 else [],
                    )
            expired = s.scheduler.finish(numbers[0], NUM_TOKENS // 2, "deadline")
            s.scheduler.outputs(numbers[0], [], [expired])
            await s.until(lambda: sum(not task.done() for task in crowd) == 1)
            next(task for task in crowd if not task.done()).cancel()  # the one that never ends: its client gives up
            await s.until(lambda: any(numbers[1] in abort.numbers for abort in s.scheduler.aborts))
            wholes = [task.result().token_ids for task in crowd if not task.cancelled() and task.exception() is None]
            assert wholes.count([token] * NUM_TOKENS) == NUM_STREAMS - 2
            failures = [task.exception() for task in crowd if task.done() and not task.cancelled() and task.exception()]
            assert [type(one) for one in failures] == [RequestError]
            assert failures[0].status == "DEADLINE_EXCEEDED"

    asyncio.run(main())


@pytest.mark.parametrize("slow", [1, 3])
def test_readers_that_take_nothing_hold_nobody(serving, tokenizer, slow):
    """More of them than messages begin in a turn; what they leave unread stays below the bound of a slow reader."""

    async def main():
        async with serving() as s:
            calls = [s.client.stream(GenerateRequest(input="x", max_tokens=400)) for _ in range(slow)]
            stuck = [asyncio.create_task(anext(call)) for call in calls]
            await s.scheduler.submitted(slow)
            for submit in s.scheduler.submits:
                s.scheduler.outputs(submit.number, [(0, at, 70) for at in range(300)])
            await asyncio.gather(*stuck)
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokenizer.encode("hello").ids)
            answers = await asyncio.gather(*(read(s, GenerateRequest(input="x")) for _ in range(8)))
            assert [one.text for one in answers] == ["hello"] * 8
            for call in calls:
                await call.aclose()

    asyncio.run(main())
