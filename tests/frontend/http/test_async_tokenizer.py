"""Tokens of long texts: made in a process of its own, which ends when nobody waits."""

import asyncio
import signal
import threading
from contextlib import asynccontextmanager

import psutil
import pytest
from parts.clock import GUARD

from quire.frontend.config import FrontendConfig
from quire.frontend.text import async_tokenizer
from quire.frontend.text.async_tokenizer import AsyncTokenizer
from quire.frontend.text.encode_jobs import EncodeTemplate, EncodeText, answer, result, text_payload
from quire.frontend.text.encode_threads import EncodeThreads
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError


def test_texts_of_tokens_are_made_only_where_they_are_asked_for(web, monkeypatch):
    made = []
    text = TextTokenizer.token_text
    monkeypatch.setattr(TextTokenizer, "token_text", lambda self, token: (made.append(token), text(self, token))[1])

    async def main():
        async with web() as w:
            plain = (await w.client.post("/tokenize", json={"prompt": "hello world"})).json()
            assert plain["token_strs"] is None
            assert (await w.serving.client.tokenize("hello world")).texts == ()
            assert not made
            asked = (await w.client.post("/tokenize", json={"prompt": "hello world", "return_token_strs": True})).json()
            assert "".join(asked["token_strs"]) == "hello world"
            assert "".join((await w.serving.client.tokenize("hello world", return_texts=True)).texts) == "hello world"

    asyncio.run(main())


def test_a_long_text_is_tokenized_in_another_process_with_the_same_ids(web, model_dir, monkeypatch):
    monkeypatch.setattr(async_tokenizer, "LONG_CHARS", 1000)
    monkeypatch.setattr(async_tokenizer, "LONG_IDS", 100)
    here = TextTokenizer(str(model_dir))
    text = "naïve café €5 日本語 🙂 <|end|> hello\n" * 100

    async def main():
        async with web() as w:
            calls = []
            call = w.server.models.default.async_tokenizer._call
            w.server.models.default.async_tokenizer._call = lambda *args: (calls.append(1), call(*args))[1]
            told = (await w.client.post("/tokenize", json={"prompt": text})).json()
            assert told["tokens"] == here.encode(text)
            assert told["count"] == len(told["tokens"])
            answer = await w.client.post("/detokenize", json={"tokens": told["tokens"]})
            assert answer.json()["prompt"] == text
            messages = [{"role": "user", "content": text}]
            chat = (await w.client.post("/tokenize", json={"messages": messages})).json()
            back = await w.client.post("/detokenize", json={"tokens": chat["tokens"], "skip_special_tokens": False})
            assert back.json()["prompt"] == f"<|turn|>user\n{text}<|end|>\n<|turn|>assistant\n"
            assert len(calls) == 4

    asyncio.run(main())


@asynccontextmanager
async def opened(model_dir):
    """A tokenizer by itself, with its thread and processes."""
    pool = EncodeThreads(1)
    config = FrontendConfig(scheduler_address="ipc://x", model=str(model_dir), served_model_names=("m",))
    mine = AsyncTokenizer(config, TextTokenizer(str(model_dir)), pool)
    try:
        yield mine
    finally:
        await mine.close()
        pool.close()


def test_a_client_that_leaves_ends_the_process_that_tokenizes_for_it(model_dir, monkeypatch):
    monkeypatch.setattr(async_tokenizer, "LONG_CHARS", 10)
    monkeypatch.setattr(async_tokenizer, "SHORT_CHARS", 0)
    monkeypatch.setattr(async_tokenizer, "NUM_PROCESSES", 1)
    text = "the quick brown fox " * 400_000

    async def main():
        async with opened(model_dir) as mine:
            assert len(await mine.ids(EncodeText(True), "hello world", "text"))
            (sandbox,) = mine._num_waiting
            child = sandbox._child._process
            computed = sandbox._child._computed_seconds()
            leaving = asyncio.create_task(mine.ids(EncodeText(True), text, "text"))
            async with asyncio.timeout(GUARD):
                while sandbox._child._computed_seconds() < computed + 0.02:  # it has been asked, and has only begun
                    await asyncio.sleep(0.001)
                leaving.cancel()
                while child.poll() is None:
                    await asyncio.sleep(0.01)
                ids = await mine.ids(EncodeTemplate({}), "<|end|> hello world", "text")
            assert list(ids) == TextTokenizer(str(model_dir)).encode_template("<|end|> hello world", {})

    asyncio.run(main())


@pytest.mark.parametrize("job", [EncodeTemplate({})])
def test_a_process_that_encodes_a_long_text_grows_by_less_than_ten_times_its_size(model_dir, job):
    text = "the quick brown fox jumps over 1234 lazy dogs\n" * 60_000

    def peak(pid: int) -> int:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

    async def main():
        async with opened(model_dir) as mine:
            sandbox = next(iter(mine._num_waiting))
            await sandbox.start()
            pid = sandbox._child._process.pid
            before = peak(pid)
            assert len(await mine.ids(job, text, "text"))
            assert peak(pid) - before < 10 * len(text)

    asyncio.run(main())


def test_a_text_of_five_million_tokens_is_encoded_where_a_context_holds_them(model_dir):
    text = "~" * 5_000_000

    async def main():
        async with opened(model_dir) as mine:
            assert len(await mine.ids(EncodeText(False), text, "text")) == len(text)

    asyncio.run(main())


@pytest.mark.parametrize(("signum", "said"), [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "to compute")])
def test_a_process_that_fails_by_itself_is_answered_503_to_be_sent_again(web, monkeypatch, signum, said):
    monkeypatch.setattr(async_tokenizer, "LONG_CHARS", 10)
    monkeypatch.setattr(async_tokenizer, "SHORT_CHARS", 0)
    monkeypatch.setattr(async_tokenizer, "SECONDS", GUARD if signum == signal.SIGKILL else 0.2)

    async def main():
        async with web() as w:
            sandbox, _ = w.server.models.default.async_tokenizer._num_waiting
            await sandbox.start()
            for ask in ("http", "grpc"):
                child = psutil.Process(sandbox._child._process.pid)
                child.suspend()
                if ask == "http":
                    asked = asyncio.create_task(w.client.post("/tokenize", json={"prompt": "hello world"}))
                else:
                    asked = asyncio.create_task(w.serving.client.tokenize("hello world"))
                await w.until(lambda: w.server.models.default.async_tokenizer._num_waiting[sandbox])
                for _ in range(20):
                    await asyncio.sleep(0)  # until it has been asked, or another one would be
                child.send_signal(signum)
                if ask == "http":
                    answer = await asked
                    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                    assert answer.headers["x-should-retry"] == "true"
                    assert said in answer.json()["error"]["message"]
                else:
                    with pytest.raises(RequestError, match=said) as caught:
                        await asked
                    assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", "RECOVERING")
                    assert caught.value.retry_after_seconds == 1.0
                await sandbox.start()

    asyncio.run(main())


def test_a_long_text_without_room_is_refused_by_its_field(model_dir, monkeypatch):
    monkeypatch.setattr(async_tokenizer, "LONG_CHARS", 10)
    values = {"scheduler_address": "ipc://x", "model": str(model_dir), "served_model_names": ("m",)}

    async def main():
        pool = EncodeThreads(1)
        config = FrontendConfig(**values, encoder_memory_bytes=400 << 20)
        mine = AsyncTokenizer(config, TextTokenizer(str(model_dir)), pool)
        try:
            with pytest.raises(ParameterError, match="took too much memory to tokenize; shorten it") as caught:
                await mine.ids(EncodeText(True), "\u0301" * 4_000_000, "text")  # no character to cut it at
            assert caught.value.field == "text"
        finally:
            await mine.close()
            pool.close()

    asyncio.run(main())


def test_what_the_process_refuses_is_refused_by_its_own_field_and_the_process_lives_on(model_dir):
    """Special tokens in too many spellings: the same words as beside the event loop."""

    class Refusing:
        def template_column(self, text, originals):
            raise ParameterError("chat.messages", f"hold {text}: remove it", "UNSUPPORTED")

    payload = text_payload(EncodeTemplate({}), "a: b")
    with pytest.raises(ParameterError, match=r"^chat.messages: hold a: b: remove it$") as caught:
        result(answer(bytes(payload), Refusing()))
    assert (caught.value.field, caught.value.reason) == ("chat.messages", "UNSUPPORTED")
    ids = result(answer(bytes(text_payload(EncodeText(True), "hello")), TextTokenizer(str(model_dir))))
    assert ids.cast("i").tolist() == TextTokenizer(str(model_dir)).encode("hello")


def test_only_short_texts_of_cheap_characters_are_encoded_on_the_event_loop(model_dir, monkeypatch):
    """A character of another script may cost a tokenizer three hundred times as much."""
    threads: list[int] = []

    def encode(*arguments: object) -> list[int]:
        threads.append(threading.get_ident())
        return [1]

    monkeypatch.setattr(TextTokenizer, "column", encode)

    async def main():
        pool = EncodeThreads(1)
        config = FrontendConfig(scheduler_address="ipc://x", model=str(model_dir), served_model_names=("m",))
        mine = AsyncTokenizer(config, TextTokenizer(str(model_dir)), pool)
        try:
            for text in ("a" * 1024, "龘", "a" * 1025):
                await mine.ids(EncodeText(True), text, "text")
        finally:
            await mine.close()
            pool.close()

    asyncio.run(main())
    assert [thread == threading.get_ident() for thread in threads] == [True, False, False]
