"""The tokenizer beside the event loop: short texts at once, others in threads, long ones in child processes.

A long text takes the library a hundred times its size in memory, and its ids cost a tenth of a second in one call that
keeps the interpreter. In a child process that harms nobody else, and ends when the client leaves.
"""

from array import array
from collections.abc import Sequence

from quire.frontend.config import FrontendConfig
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxTimeout
from quire.frontend.sandbox.parent import Sandbox
from quire.frontend.text.bad_words import bad_word_tokens
from quire.frontend.text.encode_jobs import DecodeIds, EncodeTemplate, EncodeText, ids_payload, result, text_payload
from quire.frontend.text.encode_threads import SHORT_CHARS, EncodeThreads
from quire.frontend.text.tokenizer import TextTokenizer, TokenTexts
from quire.proto.messages.params import ParameterError

MODULE = "quire.frontend.text.encode_child"
LONG_CHARS = 128 << 10
"""Length from which on a child encodes a text: its list of ids would keep the interpreter for a good part of a
millisecond, in a thread that gives way to others and may lose its core meanwhile."""
LONG_IDS = 64 << 10
"""Number of ids from which on a child decodes them."""
NUM_PROCESSES = 2
"""Number of child processes. The first starts with the first long text, the second with one that finds it busy."""
SECONDS = 300.0
"""CPU time of one text."""
MAX_ANSWER_BYTES = 64 << 20


class AsyncTokenizer:
    """One per frontend.

    Every method raises `ParameterError` on `field` for what takes too much time or memory, and `RequestError` where a
    child fails by itself.
    """

    def __init__(self, config: FrontendConfig, tokenizer: TextTokenizer, threads: EncodeThreads) -> None:
        self._tokenizer = tokenizer
        self._threads = threads
        setup = config.tokenizer_dir.encode()
        memory_bytes = config.encoder_memory_bytes
        self._num_waiting = {
            Sandbox(MODULE, setup, memory_bytes=memory_bytes, max_answer_bytes=MAX_ANSWER_BYTES): 0
            for _ in range(NUM_PROCESSES)
        }

    async def ids(
        self, job: EncodeText | EncodeTemplate, text: str, field: str, context: int | None = None
    ) -> Sequence[int]:
        """The ids of a text, as a column of int32. A text longer than `context` of the longest tokens is refused."""
        if context is not None and len(text) > context * self._tokenizer.max_token_chars:
            message = f"{len(text)} characters can never fit the context of {context} tokens; {job.remedy}"
            raise ParameterError(field, message, "CONTEXT_LENGTH_EXCEEDED")
        if len(text) <= SHORT_CHARS and text.isascii():  # a character of other scripts may cost 300 times as much
            return job.ids(self._tokenizer, text)
        if len(text) < LONG_CHARS:
            return await self._threads.run(len(text), job.ids, self._tokenizer, text)
        column = array("i")
        column.frombytes(await self._call(await self._threads.run_python(text_payload, job, text), field))
        return column

    async def text(self, ids: Sequence[int], skip_special_tokens: bool, field: str) -> str:
        """The text of ids within the vocabulary."""
        job = DecodeIds(skip_special_tokens)
        if len(ids) < LONG_IDS:
            return await self._threads.run(4 * len(ids), job.text, self._tokenizer, ids)
        return str(await self._call(await self._threads.run_python(ids_payload, job, ids), field), "utf-8")

    def texts(self, ids: Sequence[int]) -> Sequence[str]:
        """The text of each token alone."""
        return TokenTexts(ids, self._tokenizer)

    async def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """See `bad_word_tokens`, which encodes each word several times."""
        if not words:
            return ()
        return await self._threads.run(sum(map(len, words)), bad_word_tokens, words, self._tokenizer)

    async def close(self) -> None:
        for sandbox in self._num_waiting:
            await sandbox.close()

    async def _call(self, payload: bytearray, field: str) -> memoryview:
        sandbox = min(self._num_waiting, key=self._num_waiting.__getitem__)
        self._num_waiting[sandbox] += 1
        try:
            return result(await sandbox.call(payload, SECONDS, stop_when_left=True))
        except SandboxTimeout as error:
            raise ParameterError(field, f"took more than {SECONDS:g} s to tokenize; shorten it") from error
        except SandboxCrashed as error:
            raise ParameterError(field, "took too much memory to tokenize; shorten it") from error
        finally:
            self._num_waiting[sandbox] -= 1
