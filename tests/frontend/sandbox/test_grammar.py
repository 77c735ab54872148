"""What a grammar's compiler may do to a frontend: nothing. A bad one is its own request's 400, a good one is kept."""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from parts.clock import GUARD

from quire.frontend.config import FrontendConfig
from quire.frontend.sandbox import child_process
from quire.frontend.sandbox.grammar import GrammarChecker
from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError, Tool
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.messages.requests import ModelFacts

GOOD = Structured("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}')

SLOW = Structured("json_schema", '{"type": "integer", "multipleOf": 499979}')


def facts(eos: int = 0) -> ModelFacts:
    return ModelFacts(
        max_model_len=512,
        vocab_size=420,
        eos_token_ids=(eos,),
        num_blocks=64,
        block_sizes=(16,),
        kv_bytes=1,
        weight_bytes=1,
        device="cpu",
        dtype="float32",
        architecture="Tiny",
        revision="r1",
    )


@pytest.fixture
def checking(model_dir: Path) -> Callable[..., None]:
    """`checking(work, **config)`: run `work(grammars)`, then close."""

    def run(work: Callable[[GrammarChecker], Awaitable[None]], **changes: object) -> None:
        async def main() -> None:
            values = {"scheduler_address": "x", "model": str(model_dir), "served_model_names": ("tiny",), **changes}
            grammars = GrammarChecker(FrontendConfig(**values))
            try:
                await work(grammars)
            finally:
                await grammars.close()

        asyncio.run(main())

    return run


async def refusal(grammars: GrammarChecker, structured: Structured) -> str:
    with pytest.raises(ParameterError) as caught:
        await grammars.check(structured, facts())
    assert (caught.value.field, caught.value.reason) == ("structured", "INVALID_GRAMMAR")
    return str(caught.value)


def children() -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if "quire.frontend.sandbox.grammar_child" in " ".join(c.cmdline())]


def test_a_verdict_is_found_once_and_kept_for_both_good_and_bad(checking: Callable[..., None]) -> None:
    bad = Structured("regex", "(a")

    async def work(grammars: GrammarChecker) -> None:
        await asyncio.gather(*(grammars.check(GOOD, facts()) for _ in range(20)))
        assert "unclosed group" in await refusal(grammars, bad)
        (child,) = children()
        child.suspend()  # whoever asks it now waits
        await grammars.check(GOOD, facts())
        assert "unclosed group" in await refusal(grammars, bad)
        child.resume()

    checking(work)


def test_what_takes_too_long_is_stopped_and_others_are_served(
    checking: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "IDLE_CHECKS", 1 << 30)  # a busy machine may leave it idle for so little time

    async def work(grammars: GrammarChecker) -> None:
        await grammars.check(GOOD, facts())
        (before,) = children()
        message = await refusal(grammars, SLOW)
        assert message == "structured: json_schema: compile limit 0.3 s; make it simpler"
        await grammars.check(Structured("regex", "b+"), facts())
        assert not before.is_running()
        (after,) = children()
        assert "compile limit" in await refusal(grammars, SLOW)
        assert after.is_running()

    checking(work, grammar_seconds=0.3)


def test_a_compiler_that_dies_fails_its_request_and_others_are_served(checking: Callable[..., None]) -> None:
    async def work(grammars: GrammarChecker) -> None:
        await grammars.check(GOOD, facts())
        (before,) = children()
        before.suspend()
        asked = asyncio.create_task(refusal(grammars, Structured("regex", "a+")))
        for _ in range(20):
            await asyncio.sleep(0)  # until it has been asked, or another one would be
        before.send_signal(signal.SIGSEGV)
        before.resume()
        assert await asked == "structured: regex: compiling it ended in a crash or out of memory; make it simpler"
        await grammars.check(Structured("regex", "b+"), facts())

    checking(work, grammar_seconds=GUARD)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_compiler_that_fails_by_itself_is_no_verdict_and_the_next_try_finds_one(
    checking: Callable[..., None], kill: bool
) -> None:
    regex = Structured("regex", "a+")

    async def work(grammars: GrammarChecker) -> None:
        await grammars.check(GOOD, facts())
        (before,) = children()
        before.suspend()
        asked = [asyncio.create_task(grammars.check(regex, facts())) for _ in range(2)]
        if kill:
            for _ in range(20):
                await asyncio.sleep(0)  # until it has been asked, or another one would be
            before.kill()
        for failed in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(failed, RequestError)
            assert (failed.reason, failed.retryable, failed.field) == ("RECOVERING", True, "")
        await grammars.check(regex, facts())

    checking(work, grammar_seconds=GUARD if kill else 1.0)


def test_another_model_behind_the_same_door_gets_verdicts_of_its_own(checking: Callable[..., None]) -> None:
    async def work(grammars: GrammarChecker) -> None:
        await grammars.check(GOOD, facts())
        (before,) = children()
        await grammars.check(GOOD, facts(eos=1))
        (after,) = children()
        assert before.pid != after.pid

    checking(work)


def test_a_tokenizer_the_library_cannot_read_refuses_the_feature_clearly(
    checking: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unheard"}}')

    async def work(grammars: GrammarChecker) -> None:
        with pytest.raises(ParameterError, match="does not work with this model's tokenizer") as caught:
            await grammars.check(GOOD, facts())
        assert caught.value.reason == "UNSUPPORTED"

    checking(work, tokenizer=str(tmp_path))


HOSTILE = {
    "deep": Structured("json_schema", '{"items":' * 2000 + "{}" + "}" * 2000),
    "deep string": Structured("json_schema", '{"const": "' + "[" * 2000 + '"}'),
    "deep choice": Structured("choice", "[" * 30_000),
    "deep regex": Structured("regex", "(" * 8000 + "a" + ")" * 8000),
    "deep grammar": Structured("grammar", "root ::= " + "(" * 8000 + '"a"' + ")" * 8000),
    "nested repeats": Structured("regex", "(a+)+b"),
    "huge counts": Structured("regex", "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"),
    "many optional": Structured("regex", "(?:a?){5000}a{5000}"),
    "huge length": Structured("json_schema", '{"type": "string", "minLength": 100000, "maxLength": 1000000000}'),
    "huge array": Structured("json_schema", '{"type": "array", "minItems": 1000000000, "items": {"type": "null"}}'),
    "huge enum": Structured("json_schema", json.dumps({"enum": [f"value {n}" for n in range(4000)]})),
    "own tail": Structured("json_schema", '{"$ref": "#"}'),
    "endless": Structured("json_schema", '{"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}'),
    "left recursion": Structured("grammar", 'root ::= root "a" | root root'),
    "surrogate": Structured("choice", '["\\ud800"]'),
    "zero": Structured("regex", "a\0b"),
}


def test_no_hostile_grammar_harms_the_next_request(checking: Callable[..., None]) -> None:
    async def work(grammars: GrammarChecker) -> None:
        await grammars.check(GOOD, facts())
        for number, structured in enumerate(HOSTILE.values()):
            (verdict,) = await asyncio.gather(grammars.check(structured, facts()), return_exceptions=True)
            if verdict != ():
                assert isinstance(verdict, ParameterError)
                assert verdict.reason == "INVALID_GRAMMAR"
                assert len(str(verdict)) < 600
            await grammars.check(Structured("regex", f"x{{{number}}}y"), facts())

    checking(work)


def test_a_request_with_a_bad_grammar_never_reaches_the_scheduler(serving: Callable[..., object]) -> None:
    async def main() -> None:
        async with serving() as s:
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input="hello", structured=Structured("regex", "(a")))
            assert (caught.value.reason, caught.value.field) == ("INVALID_GRAMMAR", "structured")
            tool = Tool("f", "", '{"type": "object", "properties": {"a": {"type": "objekt"}}}')
            forced = Chat([ChatMessage("user", "hello")], tools=[tool], tool_choice="required")
            with pytest.raises(RequestError) as caught:
                await s.client.generate(GenerateRequest(input=forced))
            assert (caught.value.reason, caught.value.field) == ("INVALID_GRAMMAR", "chat.tools")
            assert s.scheduler.submits == []
            s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [5], "stop")
            await s.client.generate(GenerateRequest(input="hello", structured=GOOD))
            assert s.scheduler.submits[0].params.structured == GOOD
        assert children() == []

    asyncio.run(main())
