"""Logprobs in the shape of OpenAI's legacy completions, and vLLM's `prompt_logprobs`."""

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence

from quire.frontend.http.answer import json_list
from quire.frontend.http.openai.completion_types import LegacyLogprobs, PromptLogprob
from quire.frontend.text.detokenizer import text_of
from quire.proto.api import TokenLogprobs


class LogprobWriter:
    """The writer of one choice's logprobs. `text_offset` counts the text's characters before a token, over all chunks.

    A character of several tokens counts behind its last one.
    """

    def __init__(self, as_ids: bool, hidden: Collection[int] = ()) -> None:
        """`hidden`: tokens that the text does not show."""
        self._as_ids = as_ids
        self._hidden = hidden
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._offset = 0

    def write(self, entries: Sequence[TokenLogprobs], first: tuple[int, bytes] | None = None) -> LegacyLogprobs:
        """`first` is a token (id, bytes) without a logprob that comes before the entries."""
        result = LegacyLogprobs([], [], [], [], [])
        result.top_logprobs = list(self._put_all(result, entries, first))
        return result

    def write_all(self, entries: Iterable[TokenLogprobs], first: tuple[int, bytes] | None = None) -> LegacyLogprobs:
        """As `write`, for a whole answer, whose candidates are many."""
        result = LegacyLogprobs([], [], [], [], [])
        result.top_logprobs = json_list(self._put_all(result, entries, first))
        return result

    def _put_all(
        self, result: LegacyLogprobs, entries: Iterable[TokenLogprobs], first: tuple[int, bytes] | None
    ) -> Iterator[dict[str, float] | None]:
        """Write all but the candidates, which are yielded."""
        if first is not None:
            self._put(result, first[0], text_of(first[1]), first[1], None)
            yield None
        for entry in entries:
            top = {self._name(one.token_id, one.text): one.logprob for one in (*entry.top, *entry.named)}
            top.setdefault(self._name(entry.token_id, entry.text), entry.logprob)
            self._put(result, entry.token_id, entry.text, entry.token_bytes, entry.logprob)
            yield top

    def _put(self, result: LegacyLogprobs, token: int, text: str, token_bytes: bytes, logprob: float | None) -> None:
        result.text_offset.append(self._offset)
        result.token_logprobs.append(logprob)
        result.tokens.append(self._name(token, text))
        result.bytes.append(list(token_bytes))
        if token not in self._hidden:
            self._offset += len(self._decode(token_bytes))

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
