"""How an output ends: stop strings and tokens, cancelled calls, deadlines."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from parts.examples import share

from quire.proto.api import Delta, GenerateRequest, RequestError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from generated import ids_of, read, text_of


@pytest.mark.parametrize(("include", "reason"), [(False, "stop"), (True, "length")])
def test_a_stop_string_across_tokens_ends_the_output_and_tells_the_scheduler(serving, tokenizer, include, reason):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("the fox stop here now and more").ids
            request = GenerateRequest(input="x", stop=("nothing", "p here n"), include_stop_str_in_output=include)
            reading = asyncio.create_task(read(s, request))
            submit = await s.scheduler.submitted()
            s.scheduler.outputs(submit.number, [(0, i, token) for i, token in enumerate(tokens)])
            await s.until(lambda: len(s.scheduler.aborts) == 1)
            abort = s.scheduler.aborts[0]
            assert (abort.numbers, abort.reason, abort.output_index) == ((submit.number,), "stop_string", 0)
            s.scheduler.outputs(submit.number, [], [s.scheduler.finish(submit.number, len(tokens), reason)])
            events = await reading
            assert text_of(events) == "the fox sto" + ("p here n" if include else "")
            finished = events[-1]
            assert (finished.finish_reason, finished.stop_string) == ("stop", "p here n")
            kept = ids_of(events)
            assert finished.usage.completion_tokens == len(kept) < len(tokens)
            assert "p here n" in tokenizer.decode(kept)
            assert "p here n" not in tokenizer.decode(kept[:-1])

    asyncio.run(main())


def test_text_held_back_for_a_stop_string_is_shown_when_the_output_ends_otherwise(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello sto").ids
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens)
            answer = await s.client.generate(GenerateRequest(input="x", stop=("stop",)))
            assert answer.outputs[0].text == "hello sto"
            assert answer.outputs[0].finished.stop_string is None

    asyncio.run(main())


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_delivered_and_has_no_text_unless_asked_for(serving, tokenizer, include):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello world").ids
            s.scheduler.script = lambda submit: s.scheduler.answer(
                submit.number, tokens, "stop", stop_token_id=tokens[-1]
            )
            request = GenerateRequest(input="x", stop_token_ids=(tokens[-1],), include_stop_str_in_output=include)
            (output,) = (await s.client.generate(request)).outputs
            assert list(output.token_ids) == tokens
            assert output.text == tokenizer.decode(tokens if include else tokens[:-1])
            assert output.finished.stop_token_id == tokens[-1]

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["stream", "generate"])
def test_a_cancelled_call_aborts_at_once(serving, kind):
    async def main():
        async with serving() as s:
            call = (
                read(s, GenerateRequest(input="x"))
                if kind == "stream"
                else s.client.generate(GenerateRequest(input="x"))
            )
            task = asyncio.create_task(call)
            number = (await s.scheduler.submitted()).number
            s.scheduler.outputs(number, [(0, 0, 70)])
            task.cancel()
            await s.until(lambda: bool(s.scheduler.aborts))
            assert s.scheduler.aborts[0].numbers == (number,)
            assert s.scheduler.aborts[0].reason == "client"
            assert s.server.pipeline.num_open == 0

    asyncio.run(main())


def test_many_cancelled_streams_leave_nothing_behind(serving):
    async def main():
        async with serving() as s:

            async def one() -> None:
                async with aclosing(s.client.stream(GenerateRequest(input="x", max_tokens=400))) as events:
                    async for event in events:
                        if isinstance(event, Delta):
                            return

            s.scheduler.script = lambda submit: s.scheduler.outputs(submit.number, [(0, 0, 70), (0, 1, 71)])
            for _ in range(share(20)):
                await asyncio.gather(*(one() for _ in range(50)))
            await s.until(lambda: len(s.scheduler.aborts) == 50 * share(20))
            await s.until(lambda: s.server.pipeline.num_open == 0)
            assert len(asyncio.all_tasks()) < 40

    asyncio.run(main())


def test_the_deadline_of_the_call_reaches_the_scheduler_and_ends_the_call(serving):
    async def main():
        async with serving() as s:
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input="x"), timeout_seconds=2.0)
            assert caught.value.status == "DEADLINE_EXCEEDED"
            assert 0 < (await s.scheduler.submitted()).timeout_seconds <= 2.0
            await s.until(lambda: bool(s.scheduler.aborts))

    asyncio.run(main())
