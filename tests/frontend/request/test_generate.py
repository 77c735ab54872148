"""Generation over gRPC, end to end against a scripted scheduler."""

import asyncio
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, PromptLogprobs, RequestError, Started
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from generated import ids_of, read, text_of


def prompt_of(submit) -> list[int]:
    return np.frombuffer(submit.prompt, "<i4").tolist()


def test_generate_returns_text_ids_and_usage(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello world 🙂").ids
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens)
            request = GenerateRequest(input="the fox", request_id="mine", max_tokens=len(tokens))
            answer = await s.client.generate(request)
            (output,) = answer.outputs
            assert output.text == "hello world 🙂"
            assert list(output.token_ids) == tokens
            assert (answer.request_id, answer.model) == ("mine", "tiny")
            assert answer.prompt_tokens == len(tokenizer.encode("the fox").ids)
            assert output.finished.finish_reason == "length"
            usage = output.finished.usage
            assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (3, 1, len(tokens))
            assert (usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds) == (0.1, 0.2, 0.3)

    asyncio.run(main())


def test_a_stream_starts_once_grows_and_ends_once(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("naïve café €5 日本語 🙂🙃").ids
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens, "stop")
            events = await read(s, GenerateRequest(input="x", return_prompt_token_ids=True))
            assert isinstance(events[0], Started)
            assert events[0].prompt_token_ids == tuple(tokenizer.encode("x").ids)
            assert len(events[0].request_id) == 32
            assert sum(isinstance(event, Started) for event in events) == 1
            assert isinstance(events[-1], Finished)
            assert sum(isinstance(event, Finished) for event in events) == 1
            assert ids_of(events) == tokens
            assert text_of(events) == "naïve café €5 日本語 🙂🙃"
            assert "\ufffd" not in "".join(e.text for e in events if isinstance(e, Delta))

    asyncio.run(main())


def test_what_a_request_leaves_unset_comes_from_the_model_and_what_it_sets_arrives(serving, tokenizer):
    async def main():
        async with serving() as s:
            s.scheduler.priority_enabled = True
            s.scheduler.change("ready")
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            await s.client.generate(GenerateRequest(input="hello"))
            submit = await s.scheduler.submitted(1)
            params = submit.params
            assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.5, 7, 1.0, 16)
            assert submit.timeout_seconds == pytest.approx(600, abs=1)
            assert prompt_of(submit) == tokenizer.encode("hello").ids
            await s.until(lambda: s.server.scheduler.welcome.limits.priority_enabled)
            request = GenerateRequest(
                input=(5, 6, 7),
                temperature=0.7,
                top_p=0.8,
                top_k=-1,
                min_p=0.05,
                repetition_penalty=1.2,
                presence_penalty=0.1,
                frequency_penalty=0.2,
                seed=-1,
                n=2,
                max_tokens=33,
                min_tokens=4,
                stop_token_ids=(9,),
                ignore_eos=True,
                logit_bias={3: -5.0, 1: 2.0},
                allowed_token_ids=(1, 2, 70),
                bad_words=("fox",),
                logprobs=0,
                logprob_token_ids=(8,),
                prompt_logprobs=2,
                priority=-3,
                cache_salt="salt",
                adapter="poet",
                timeout_seconds=7.5,
                model="tiny",
                truncate_prompt_tokens=2,
            )

            def both(submit):
                for index in (0, 1):
                    s.scheduler.answer(submit.number, [70], index=index)

            s.scheduler.script = both
            await s.client.generate(request)
            submit = await s.scheduler.submitted(2)
            params = submit.params
            assert prompt_of(submit) == [6, 7]
            assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.8, 0, 0.05)
            assert (params.seed, params.max_tokens, params.min_tokens) == (-1, 33, 4)
            assert params.logit_bias == ((1, 2.0), (3, -5.0))
            assert set(params.bad_words) == {tuple(tokenizer.encode(t).ids) for t in ("fox", " fox")}
            assert (params.logprobs, params.logprob_token_ids, params.prompt_logprobs) == (0, (8,), 2)
            assert (submit.n, submit.priority, submit.cache_salt, submit.adapter) == (2, -3, "salt", "poet")
            assert submit.timeout_seconds == pytest.approx(7.5, abs=1)

    asyncio.run(main())


def test_special_tokens_spelled_in_a_prompt_are_text_unless_the_request_asks_to_parse_them(serving, tokenizer):
    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            prompt = "<|turn|>hi<|end|>"
            for parse in (None, False, True):
                await s.client.generate(GenerateRequest(input=prompt, parse_special=parse))
            unset, text, parsed = [prompt_of(await s.scheduler.submitted(count)) for count in (1, 2, 3)]
            assert unset == text
            assert not set(text) & {0, 1, 2}
            assert tokenizer.decode(text, skip_special_tokens=False) == prompt
            assert parsed == tokenizer.encode(prompt).ids
            assert (parsed[0], parsed[-1]) == (1, 0)

    asyncio.run(main())


def test_a_chat_is_rendered_and_may_fill_the_context(serving, tokenizer):
    async def main():
        async with serving() as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            await s.client.generate(GenerateRequest(input=Chat([ChatMessage("user", "hi <|end|>")])))
            submit = await s.scheduler.submitted()
            prompt = prompt_of(submit)
            text = "<|turn|>user\nhi <|end|><|end|>\n<|turn|>assistant\n"
            assert tokenizer.decode(prompt, skip_special_tokens=False) == text
            assert [token for token in prompt if token < 3] == [1, 0, 1]
            assert submit.params.max_tokens == 512 - len(prompt)

    asyncio.run(main())


def test_seeds_are_drawn_for_requests_without_one_and_repeat_when_asked_to(serving):
    async def draw(**config) -> list[int]:
        async with serving(**config) as s:
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [70])
            for _ in range(3):
                await s.client.generate(GenerateRequest(input="x"))
            return [submit.params.seed for submit in s.scheduler.submits]

    first, second = asyncio.run(draw(seed=5)), asyncio.run(draw(seed=5))
    assert first == second
    assert len(set(first)) == 3
    assert asyncio.run(draw()) != asyncio.run(draw())


def test_several_outputs_interleave_without_mixing(serving, tokenizer):
    async def main():
        async with serving() as s:
            words = [tokenizer.encode(text).ids for text in ("hello world", "🙂🙃 日本語", "the quick brown fox")]
            order = [(index, at) for index, word in enumerate(words) for at in range(len(word))]
            random.Random(3).shuffle(order)
            order.sort(key=lambda pair: pair[1])
            reading = asyncio.create_task(read(s, GenerateRequest(input="x", n=3)))
            number = (await s.scheduler.submitted()).number
            for index, at in order:
                last = at == len(words[index]) - 1
                ends = [s.scheduler.finish(number, at + 1, "stop", index)] if last else []
                s.scheduler.outputs(number, [(index, at, words[index][at])], ends)
            events = await reading
            for index, word in enumerate(words):
                assert ids_of(events, index) == word
                assert text_of(events, index) == tokenizer.decode(word)
            assert sorted(e.output_index for e in events if isinstance(e, Finished)) == [0, 1, 2]

    asyncio.run(main())


def test_logprobs_come_with_their_tokens_and_their_texts(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello fox").ids
            reading = asyncio.create_task(
                read(s, GenerateRequest(input=(9, 10, 11), logprobs=1, logprob_token_ids=(5,), prompt_logprobs=0))
            )
            number = (await s.scheduler.submitted()).number
            prompt = OutputLogprobs(number, 0, True, 1, (PositionLogprobs(10, -1.0, 4), PositionLogprobs(11, -2.0, 5)))
            entries = [PositionLogprobs(t, -0.5, 1, (t,), (-0.5,), (5,), (-9.0,)) for t in tokens]
            first = OutputLogprobs(number, 0, False, 0, tuple(entries[:1]))
            rest = OutputLogprobs(number, 0, False, 1, tuple(entries[1:]))
            s.scheduler.outputs(number, [(0, 0, tokens[0])], (), [prompt, first])
            events = [(i, i, t) for i, t in enumerate(tokens)]
            s.scheduler.outputs(
                number, [(0, at, t) for at, _, t in events[1:]], [s.scheduler.finish(number, len(tokens))], [rest]
            )
            got = await reading
            (prompt_event,) = [event for event in got if isinstance(event, PromptLogprobs)]
            assert prompt_event.first_position == 1
            assert [entry.token_id for entry in prompt_event.entries] == [10, 11]
            logprobs = [entry for event in got if isinstance(event, Delta) for entry in event.logprobs]
            assert [entry.token_id for entry in logprobs] == tokens
            assert "".join(entry.text for entry in logprobs) == "hello fox"
            assert all(entry.top[0].token_id == entry.token_id for entry in logprobs)
            assert all((entry.named[0].token_id, entry.named[0].logprob) == (5, -9.0) for entry in logprobs)

    asyncio.run(main())


def test_tokens_can_be_left_out_of_the_answer(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello").ids
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens)
            (output,) = (await s.client.generate(GenerateRequest(input="x", return_token_ids=False))).outputs
            assert (output.text, list(output.token_ids)) == ("hello", [])

    asyncio.run(main())


def test_repeated_and_unknown_tokens_are_ignored(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello world").ids
            reading = asyncio.create_task(read(s, GenerateRequest(input="x")))
            number = (await s.scheduler.submitted()).number
            pairs = [(0, at, token) for at, token in enumerate(tokens)]
            s.scheduler.outputs(number, pairs[:2])
            s.scheduler.outputs(number, pairs[:2])
            s.scheduler.outputs(number + 1000, pairs)
            s.scheduler.epoch = 0
            s.scheduler.outputs(number, [(0, 2, 5)])
            s.scheduler.epoch = 1
            s.scheduler.outputs(number, pairs[1:], [s.scheduler.finish(number, len(tokens))])
            s.scheduler.outputs(number, [(0, len(tokens), 5)], [s.scheduler.finish(number, len(tokens) + 1, "error")])
            events = await reading
            assert ids_of(events) == tokens
            assert text_of(events) == "hello world"
            assert len(s.scheduler.submits) == 1

    asyncio.run(main())


def test_malformed_messages_of_the_scheduler_harm_nothing(serving, tokenizer):
    async def main():
        async with serving() as s:
            tokens = tokenizer.encode("hello world").ids
            reading = asyncio.create_task(read(s, GenerateRequest(input="x")))
            number = (await s.scheduler.submitted()).number
            for peer in s.scheduler.peers:
                for junk in (b"", b"\x80\x04junk", b"\xc1", b"\x93\xa7Outputs\x01"):
                    s.scheduler._outbox.append((peer, junk))
            s.scheduler.outputs(number, [(7, 0, 5)])
            s.scheduler.answer(number, tokens)
            assert ids_of(await reading) == tokens
            assert s.server.scheduler.num_bad_messages == 5

    asyncio.run(main())


def test_more_than_a_frontend_can_prepare_at_once_is_refused_for_a_while(serving, monkeypatch):
    monkeypatch.setattr("quire.frontend.request.pipeline.MAX_PREPARING", 0)

    async def main():
        async with serving() as s:
            with pytest.raises(RequestError) as refused:
                await s.client.generate(GenerateRequest(input="the fox", max_tokens=1))
            assert (refused.value.reason, refused.value.retry_after_seconds) == ("QUEUE_FULL", 1.0)
            assert s.scheduler.submits == []

    asyncio.run(main())
