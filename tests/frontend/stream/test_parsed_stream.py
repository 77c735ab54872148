"""Chat answers taken apart on their way to the client, and the best of several outputs."""

import asyncio

import msgspec
import pytest

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, RequestError, Tool
from quire.proto.messages.channels import Channels
from quire.proto.messages.params import Structured
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

TOOLS = (Tool("f", "Does it.", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),)
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
HI = [ChatMessage("user", "hi")]
BOTH = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}


async def ask(s, tokenizer, written: str, chat: Chat, **fields):
    tokens = tokenizer.encode(written).ids
    s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens, "stop")
    request = GenerateRequest(input=chat, max_tokens=300, **fields)
    (output,) = (await s.client.generate(request)).outputs
    events = [event async for event in s.client.stream(request)]
    assert isinstance(events[-1], Finished)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == output.text
    assert "".join(delta.reasoning for delta in deltas) == output.reasoning
    assert [token for delta in deltas for token in delta.token_ids] == list(output.token_ids) == tokens
    told = [call for delta in deltas for call in delta.tool_calls]
    assert "".join(call.arguments for call in told) == "".join(call.arguments for call in output.tool_calls)
    assert [call.name for call in told if call.name] == [call.name for call in output.tool_calls]
    return output


def test_reasoning_calls_and_text_come_apart_the_same_whole_and_streamed(serving, tokenizer):
    async def main():
        async with serving(**BOTH) as s:
            output = await ask(s, tokenizer, f"<think>\nhm\n</think>\n\nok {CALL}{CALL}", Chat(HI, tools=TOOLS))
            assert (output.reasoning, output.text) == ("hm", "ok ")
            assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": 1}')] * 2
            assert len({call.id for call in output.tool_calls}) == 2
            info = await s.client.server_info()
            assert (info.tool_parser, info.reasoning_parser) == ("hermes", "qwen3")

    asyncio.run(main())


HARMONY = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>ok<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
)


def test_one_parser_of_reasoning_and_calls_serves_every_chat(serving, tokenizer):
    async def main():
        async with serving(tool_call_parser="openai") as s:
            output = await ask(s, tokenizer, HARMONY, Chat(HI, tools=TOOLS))
            assert (output.reasoning, output.text) == ("hm", "ok")
            assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": 1}')]
            final = HARMONY[: HARMONY.index("<|start|>")] + "<|start|>assistant<|channel|>final<|message|>yes"
            assert (await ask(s, tokenizer, final, Chat(HI))).text == "yes"
            quiet = await ask(s, tokenizer, final, Chat(HI), include_reasoning=False)
            assert (quiet.reasoning, quiet.text) == ("", "yes")
            info = await s.client.server_info()
            assert (info.tool_parser, info.reasoning_parser) == ("openai", "openai")

    asyncio.run(main())


def test_a_broken_call_is_text_only_where_the_answer_is_given_whole(serving, tokenizer):
    async def main():
        async with serving(**BOTH) as s:
            tokens = tokenizer.encode(CALL.replace("1", "x")).ids
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens, "stop")
            request = GenerateRequest(input=Chat(HI, tools=TOOLS))
            (output,) = (await s.client.generate(request)).outputs
            assert (output.text, output.tool_calls) == (CALL.replace("1", "x"), ())
            events = [event async for event in s.client.stream(request)]
            deltas = [call for event in events if isinstance(event, Delta) for call in event.tool_calls]
            assert "".join(delta.arguments for delta in deltas) == '{"a": x}'

    asyncio.run(main())


@pytest.mark.parametrize(
    ("parser", "choice", "written"),
    [
        (parser, choice, written)
        for parser in ("deepseek_v31", "kimi_k2", "gemma4", "lfm2", "granite", "xlam")
        for choice, written in (
            ("required", '[{"name": "f", "parameters": {"a": 1}}]'),
            ("function:f", '{"a": 1}'),
        )
    ],
)
def test_forced_calls_are_read_whatever_the_models_format(serving, tokenizer, parser, choice, written):
    async def main():
        async with serving(tool_call_parser=parser) as s:
            output = await ask(s, tokenizer, written, Chat(HI, tools=TOOLS, tool_choice=choice))
            assert (output.text, output.reasoning) == ("", "")
            assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": 1}')]
            assert s.scheduler.submits[0].params.structured.after == ""

    asyncio.run(main())


@pytest.mark.parametrize("choice", ["required", "function:f"])
def test_a_forced_call_of_gpt_oss_comes_in_its_channel_behind_its_thoughts(serving, tokenizer, choice):
    async def main():
        async with serving(tool_call_parser="openai") as s:
            output = await ask(s, tokenizer, HARMONY, Chat(HI, tools=TOOLS, tool_choice=choice))
            assert (output.reasoning, output.text) == ("hm", "ok")
            assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": 1}')]
            told = s.scheduler.submits[0].params.structured
            channels = msgspec.json.decode(told.text, type=Channels)
            assert (told.kind, channels.answer, [call.name for call in channels.calls]) == ("channels", None, ["f"])

    asyncio.run(main())


def test_what_was_not_asked_for_is_left_alone(serving, tokenizer):
    async def main():
        async with serving(**BOTH) as s:
            written = f"<think>hm</think>{CALL}{CALL}"
            one = await ask(s, tokenizer, written, Chat(HI, tools=TOOLS, parallel_tool_calls=False))
            assert len(one.tool_calls) == 1
            for chat in (Chat(HI), Chat(HI, tools=TOOLS, tool_choice="none")):
                assert (await ask(s, tokenizer, written, chat)).text == CALL * 2
            quiet = await ask(s, tokenizer, written, Chat(HI), include_reasoning=False)
            assert (quiet.reasoning, quiet.text) == ("", CALL * 2)
        async with serving() as s:
            assert (await ask(s, tokenizer, written, Chat(HI, tools=TOOLS))).text == written

    asyncio.run(main())


@pytest.mark.parametrize(
    ("choice", "written"), [("required", '[{"name": "f", "parameters": {"a": 1}}]'), ("function:f", '{"a": 1}')]
)
def test_forced_calls_need_no_format_of_the_model(serving, tokenizer, choice, written):
    async def main():
        async with serving() as s:
            output = await ask(s, tokenizer, written, Chat(HI, tools=TOOLS, tool_choice=choice))
            assert output.text == ""
            assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": 1}')]
            assert s.scheduler.submits[0].params.structured.kind == "json_schema"
            chat = Chat(HI, tools=TOOLS, tool_choice=choice)
            request = GenerateRequest(input=chat, structured=Structured("json_object"))
            with pytest.raises(RequestError, match="tool_choice") as failed:
                await s.client.generate(request)
            assert failed.value.field == "structured"

    asyncio.run(main())


def test_a_grammar_waits_for_the_end_of_the_reasoning(serving, tokenizer):
    async def main():
        async with serving(reasoning_parser="deepseek_r1") as s:
            output = await ask(s, tokenizer, "hm</think>{}", Chat(HI), structured=Structured("json_object"))
            assert (output.reasoning, output.text) == ("hm", "{}")
            assert s.scheduler.submits[0].params.structured.after == "</think>"

    asyncio.run(main())


def test_a_stop_string_in_a_call_leaves_it_cut_off_whole_and_streamed(serving, tokenizer):
    async def main():
        async with serving(**BOTH) as s:
            tokens = tokenizer.encode(CALL).ids
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens, "stop")
            request = GenerateRequest(input=Chat(HI, tools=TOOLS), max_tokens=300, stop=["1}"])
            (output,) = (await s.client.generate(request)).outputs
            told = [call async for event in s.client.stream(request) for call in getattr(event, "tool_calls", ())]
            assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": ')]
            assert (told[0].name, "".join(call.arguments for call in told)) == ("f", '{"a": ')
            assert (output.text, output.finished.stop_string) == ("", "1}")

    asyncio.run(main())


def test_special_tokens_that_mark_calls_are_seen_though_they_are_skipped(serving, model_dir, tokenizer, monkeypatch):
    from quire.frontend.parsing.tools.json_objects.hermes import HermesParser

    monkeypatch.setattr(HermesParser, "markers", ("<|turn|>",))

    async def main():
        async with serving(tool_call_parser="hermes") as s:
            tokens = [1, *tokenizer.encode("hello").ids, 2]
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, tokens, "length")
            seen = await s.client.generate(GenerateRequest(input=Chat(HI, tools=TOOLS)))
            assert seen.outputs[0].text == "<|turn|>hello"
            plain = await s.client.generate(GenerateRequest(input=Chat(HI)))
            assert plain.outputs[0].text == "hello"

    asyncio.run(main())


def test_the_likeliest_outputs_are_answered_and_logprobs_only_when_asked_for(serving, tokenizer):
    async def main():
        async with serving() as s:
            means = (-3.0, -1.0, -2.0)

            def answer(submit):
                assert (submit.n, submit.params.logprobs) == (3, 0 if len(s.scheduler.submits) == 1 else 1)
                for index, logprob in enumerate(means):
                    entry = PositionLogprobs(70 + index, logprob, 1)
                    logprobs = OutputLogprobs(submit.number, index, False, 0, (entry,))
                    end = s.scheduler.finish(submit.number, 1, "length", index)
                    s.scheduler.outputs(submit.number, [(index, 0, 70 + index)], [end], [logprobs])

            s.scheduler.script = answer
            request = GenerateRequest(input="x", n=2, best_of=3, max_tokens=1)
            answered = (await s.client.generate(request)).outputs
            assert [list(output.token_ids) for output in answered] == [[71], [72]]
            assert [output.finished.output_index for output in answered] == [0, 1]
            assert [list(output.logprobs) for output in answered] == [[], []]
            shown = await s.client.generate(GenerateRequest(input="x", n=1, best_of=3, max_tokens=1, logprobs=1))
            assert [entry.logprob for entry in shown.outputs[0].logprobs] == [-1.0]
            with pytest.raises(RequestError, match="best_of") as failed:
                [event async for event in s.client.stream(GenerateRequest(input="x", n=2, best_of=3, logprobs=1))]
            assert failed.value.reason == "UNSUPPORTED"
            assert len(s.scheduler.submits) == 2  # refused before anything was drawn

    asyncio.run(main())


@pytest.mark.parametrize("fields", [{"n": 3, "best_of": 2}, {"best_of": 65}, {"best_of": 2, "temperature": 0.0}])
def test_impossible_numbers_of_outputs_are_refused(serving, fields):
    async def main():
        async with serving() as s:
            with pytest.raises(RequestError) as failed:
                await s.client.generate(GenerateRequest(input="x", **fields))
            assert failed.value.field == "best_of"

    asyncio.run(main())
