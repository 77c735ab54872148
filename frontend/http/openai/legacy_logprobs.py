"""Logprobs in the shape of OpenAI's legacy completions, and vLLM's `prompt_logprobs`."""

import codecs
from collections.abc import Iterable, Iterator, Sequence

from quire.frontend.http.answer import json_list
from quire.frontend.http.openai.completion_types import LegacyLogprobs, PromptLogprob
from quire.frontend.text.detokenizer import text_of
from quire.frontend.text.tokenizer import Unshown
from quire.proto.api import TokenLogprobs


class LogprobWriter:
    """The writer of one choice's logprobs. `text_offset` counts the text's characters before a token, over all chunks.

    A character of several tokens counts behind its last one.
    """

    def __init__(self, as_ids: bool, unshown: Unshown) -> None:
        self._as_ids = as_ids
        self._unshown = unshown
        self._offset = 0
        self._echoes = False
        """True in the prompt; what was drawn behind it is a text of its own."""
        self._begin()

    def write(
        self, entries: Sequence[TokenLogprobs], first: tuple[int, bytes] | None = None, num_echoed: int = 0
    ) -> LegacyLogprobs:
        """`first`: a token (id, bytes) without a logprob before the entries. `num_echoed`: entries of the prompt."""
        result = LegacyLogprobs([], [], [], [], [])
        result.top_logprobs = list(self._put_all(result, entries, first, num_echoed))
        return result

    def write_all(
        self, entries: Iterable[TokenLogprobs], first: tuple[int, bytes] | None = None, num_echoed: int = 0
    ) -> LegacyLogprobs:
        """As `write`, for a whole answer, whose candidates are many."""
        result = LegacyLogprobs([], [], [], [], [])
        result.top_logprobs = json_list(self._put_all(result, entries, first, num_echoed))
        return result

    def _put_all(
        self,
        result: LegacyLogprobs,
        entries: Iterable[TokenLogprobs],
        first: tuple[int, bytes] | None,
        num_echoed: int,
    ) -> Iterator[dict[str, float] | None]:
        """Write all but the candidates, which are yielded."""
        if first is not None:
            self._echoes = True
            self._put(result, first[0], text_of(first[1]), first[1], None)
            yield None
        for index, entry in enumerate(entries):
            if self._echoes and index >= num_echoed:
                self._echoes = False
                self._offset += len(self._decode(b"", True))
                self._begin()
            top = {self._name(one.token_id, one.text): one.logprob for one in (*entry.top, *entry.named)}
            top.setdefault(self._name(entry.token_id, entry.text), entry.logprob)
            self._put(result, entry.token_id, entry.text, entry.token_bytes, entry.logprob)
            yield top

    def _begin(self) -> None:
        """Begin a text."""
        self._drops_space = self._unshown.first_space
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def _put(self, result: LegacyLogprobs, token: int, text: str, token_bytes: bytes, logprob: float | None) -> None:
        result.text_offset.append(self._offset)
        result.token_logprobs.append(logprob)
        result.tokens.append(self._name(token, text))
        result.bytes.append(list(token_bytes))
        if token not in self._unshown.tokens and token_bytes:
            self._offset += len(self._decode(token_bytes.removeprefix(b" ") if self._drops_space else token_bytes))
            self._drops_space = False

    def _name(self, token: int, text: str) -> str:
        return f"token_id:{token}" if self._as_ids else text


def prompt_logprobs(entries: Iterable[TokenLogprobs]) -> Iterator[dict[int, PromptLogprob] | None]:
    """One dictionary per prompt token, null for the first. Ranks of candidates are known where they are in order."""
    yield None
    for entry in entries:
        position = {entry.token_id: PromptLogprob(entry.logprob, entry.rank, entry.text)}
        for rank, one in enumerate(entry.top, 1):
            position.setdefault(one.token_id, PromptLogprob(one.logprob, rank, one.text))
        for one in entry.named:
            position.setdefault(one.token_id, PromptLogprob(one.logprob, None, one.text))
        yield position
