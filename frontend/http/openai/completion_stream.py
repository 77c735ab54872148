"""The chunks of a streamed completion."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from quire.frontend.http.answer import CachedTokens, UsageBlock, timings, total_usage, usage_block
from quire.frontend.http.openai.completion_types import Choice, Completion, CompletionRequest
from quire.frontend.http.openai.legacy_logprobs import LogprobWriter, prompt_logprobs
from quire.frontend.http.sse import DONE, data
from quire.frontend.text.tokenizer import Unshown
from quire.proto.api import Delta, Event, Finished, PromptLogprobs, Started
from quire.proto.messages.message import Usage, cached_of_prompt

EMPTY = b'"prompt_logprobs":[]'
"""Stands in no text: quotes in a JSON string are escaped."""
NULL = b"null"

_encode = msgspec.json.Encoder().encode


class ChunkWriter:
    """A choice's last chunk is the one with its finish reason; text that came with the end is in it."""

    def __init__(
        self,
        payload: CompletionRequest,
        request_id: str,
        num_prompts: int,
        stop_reason: Callable[[Finished], str | int | None],
        unshown: Unshown,
        include_timings: bool,
    ) -> None:
        """`unshown`: see `LogprobWriter`."""
        self._payload = payload
        self._width = payload.n or 1
        self._stop_reason = stop_reason
        self._unshown = unshown
        self._include_timings = include_timings
        self._scores_only = bool(payload.echo) and payload.max_tokens == 0
        self._chunk = Completion(
            id=f"cmpl-{request_id}", object="text_completion", created=int(time.time()), model="", choices=[]
        )
        if payload.usage_at_end or payload.usage_always:
            self._chunk.usage = None
        self._started: dict[int, Started] = {}
        self._prompt_logprobs: defaultdict[int, list[bytes]] = defaultdict(lambda: [NULL])
        """Items of each prompt's list, in JSON: its first token has none."""
        self._usages: dict[int, list[Usage]] = {prompt: [] for prompt in range(num_prompts)}
        self._num_tokens: dict[int, int] = {}
        self._logprobs: dict[int, LogprobWriter] = {}

    def echo(self, prompt: int, started: Started, text: str, first: bytes) -> Iterator[bytes]:
        """The chunks with the prompt's text, one for each output. Its logprobs follow as they come."""
        self._chunk.model = started.model
        self._started[prompt] = started
        for index in self._outputs(prompt):
            choice = Choice(index=index, text=text, logprobs=None, finish_reason=None, stop_reason=None)
            if self._payload.logprobs is not None:
                choice.logprobs = self._writer(index).write((), (started.prompt_token_ids[0], first))
            yield self._encoded(prompt, choice)

    def write(self, prompt: int, events: Sequence[Event]) -> Iterator[bytes]:
        """Every event as chunks, made as they are taken; a delta and the end of the same output share one."""
        choices: list[Choice] = []
        for event in events:
            if isinstance(event, Delta):
                if self._scores_only:  # the one token that was drawn
                    continue
                choices.append(self._grown(prompt, event))
            elif isinstance(event, Finished):
                self._usages[prompt].append(event.usage)
                index = prompt * self._width + event.output_index
                if not choices or choices[-1].index != index:
                    choices.append(self._grown(prompt, Delta(event.output_index, "", ())))
                choices[-1].finish_reason = "length" if self._scores_only else event.finish_reason
                choices[-1].stop_reason = self._stop_reason(event)
            elif isinstance(event, Started):
                self._started[prompt] = event
                self._chunk.model = event.model
            elif isinstance(event, PromptLogprobs):
                if self._payload.prompt_logprobs is not None:
                    _, *positions = prompt_logprobs(event.entries)
                    self._prompt_logprobs[prompt].append(b"," + _encode(positions)[1:-1])
                if self._payload.echo and self._payload.logprobs is not None:
                    for index in self._outputs(prompt):
                        yield self._encoded(prompt, self._echoed(index, event))
        for choice in choices:
            yield self._encoded(prompt, choice)

    def end(self) -> bytes:
        """The last bytes of the stream."""
        if not self._payload.usage_at_end:
            return DONE
        self._chunk.choices = []
        blocks = [usage_block(usages) for usages in self._usages.values()]
        for block in blocks if self._scores_only else ():
            block.completion_tokens, block.total_tokens = 0, block.prompt_tokens
        self._chunk.usage = total_usage(blocks)
        if self._include_timings:
            self._chunk.usage.timings = timings(self._usages.values())
        return data(self._chunk) + DONE

    def _outputs(self, prompt: int) -> range:
        return range(prompt * self._width, (prompt + 1) * self._width)

    def _writer(self, index: int) -> LogprobWriter:
        as_ids = bool(self._payload.return_tokens_as_token_ids)
        return self._logprobs.setdefault(index, LogprobWriter(as_ids, self._unshown))

    def _echoed(self, index: int, event: PromptLogprobs) -> Choice:
        """The next logprobs of an echoed prompt, whose text came before."""
        shown = self._writer(index).write(event.entries, num_echoed=len(event.entries))
        return Choice(index=index, text="", logprobs=shown, finish_reason=None, stop_reason=None)

    def _grown(self, prompt: int, delta: Delta) -> Choice:
        payload, index = self._payload, prompt * self._width + delta.output_index
        choice = Choice(index=index, text=delta.text, logprobs=None, finish_reason=None, stop_reason=None)
        is_first = index not in self._num_tokens
        self._num_tokens[index] = self._num_tokens.get(index, 0) + len(delta.token_ids)
        if payload.logprobs is not None and delta.logprobs:
            choice.logprobs = self._writer(index).write(delta.logprobs)
        if payload.return_token_ids:
            choice.token_ids = list(delta.token_ids)
            if is_first:
                choice.prompt_token_ids = list(self._started[prompt].prompt_token_ids)
        if payload.prompt_logprobs is not None and is_first:
            choice.prompt_logprobs = msgspec.Raw(b"[]")
        return choice

    def _encoded(self, prompt: int, choice: Choice) -> bytes:
        self._chunk.choices = [choice]
        if self._payload.usage_always:
            size = self._started[prompt].prompt_tokens
            drawn = sum(self._num_tokens.get(index, 0) for index in self._outputs(prompt))
            usages = self._usages[prompt]
            cached = cached_of_prompt(usages) if len(usages) == self._width else 0
            self._chunk.usage = UsageBlock(size, size + drawn, drawn, CachedTokens(cached))
        encoded = data(self._chunk)
        if choice.prompt_logprobs is None:
            return encoded
        before, _, behind = encoded.partition(EMPTY)
        return b"".join((before, EMPTY[:-1], *self._prompt_logprobs[prompt], EMPTY[-1:], behind))
