"""One request on its way back: fed by the scheduler's link, read by one door, bounded in between.

What a slow reader has not taken is merged, not queued; past the bound the request is aborted. One future wakes the
reader, however many tokens arrived.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.output_buffer import OutputBuffer, with_text
from quire.frontend.stream.prepared_request import Prepared
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto import api
from quire.proto.api import RequestError
from quire.proto.messages.errors import REASONS
from quire.proto.messages.message import AbortReason, Usage
from quire.proto.messages.requests import Finish, OutputLogprobs, PositionLogprobs, Submit

MAX_CANDIDATES = 1024
"""Of the prompt's logprobs that are told at once: a long prompt has a million."""
INTERNAL_TEXTS = {
    "NUMERICAL": "the model produced numbers that are not finite for this request",
    "POISON_REQUEST": "this request was running in repeated crashes and is not run again",
}

log = logging.getLogger("quire.frontend")


class RequestStream:
    """Every output ends in exactly one `Finished`; a failure of the request as a whole is raised by `take`."""

    def __init__(
        self,
        prepared: Prepared,
        tokenizer: TextTokenizer,
        abort: Callable[["RequestStream", AbortReason, int], None],
        max_unread_bytes: int,
        metrics: Metrics,
    ) -> None:
        self.prepared = prepared
        self.was_accepted = True
        """The scheduler has not refused it."""
        self.first_token_at = 0.0
        self.ended_at = 0.0
        """When its newest output ended, as the scheduler said."""
        self.vector = b""
        """float32, of a prompt that was embedded."""
        self.number = -1
        self.num_resumes = 0
        self.num_losses = 0
        """Of the resumes those that count against it: see `Patience.is_suspect`."""
        self.is_slow = False
        self.outputs = [prepared.output(index, tokenizer) for index in range(prepared.n)]
        self._token_bytes = tokenizer.token_bytes
        self._abort = abort
        self._max_unread_bytes = max_unread_bytes
        self._metrics = metrics
        self._unread_bytes = 0
        self._dirty: list[OutputBuffer] = []
        self._prompt_logprobs: list[PositionLogprobs] = []
        self._num_prompt_logprobs = 0
        self._started = False
        self._failure: RequestError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[object] | None = None
        self._beats_without_reader = 0

    @property
    def is_live(self) -> bool:
        """The scheduler still owes something."""
        return self._failure is None and any(output.finished is None for output in self.outputs)

    @property
    def failure(self) -> RequestError | None:
        """Why the request as a whole failed, if it did."""
        return self._failure

    # ---- fed by the link

    def push(self, output_index: int, position: int, token_id: int, now: float) -> bool:
        """Take a token if it is the next one. False when tokens before it are missing; repeats are ignored."""
        output = self.outputs[output_index]
        if position != output.num_tokens or output.ended:
            return position < output.num_tokens or output.ended
        if output.last_token_at:
            self._metrics.interval(now - output.last_token_at)
        elif not self.first_token_at:
            self.first_token_at = now
            self._metrics.first_token(now - self.prepared.arrived, len(self.prepared.prompt))
        output.last_token_at = now
        self._grew(output, output.push(token_id))
        if self.prepared.stop and output.stop_string is not None and not self.is_slow:
            self._abort(self, "stop_string", output_index)
        return True

    def push_logprobs(self, message: OutputLogprobs) -> None:
        if not message.prompt:
            output = self.outputs[message.output_index]
            self._grew(output, output.push_logprobs(message))
            return
        skip = self._num_prompt_logprobs + 1 - message.first_position
        if skip >= 0:
            entries = message.entries[skip:]
            self._prompt_logprobs += entries
            self._num_prompt_logprobs += len(entries)
            self._wake()

    def announce(self, finish: Finish) -> None:
        """Called before the tokens of the same step: the stop token among them has no text."""
        if finish.stop_token_id >= 0 and not self.prepared.include_stop:
            self.outputs[finish.output_index].silent_position = finish.num_tokens - 1

    def finish(self, finish: Finish, now: float) -> bool:
        """Take an output's end. False when tokens before it are missing."""
        output = self.outputs[finish.output_index]
        if output.finished is not None or self.is_slow:
            return True
        if finish.reason in ("stop", "length") and output.stop_string is None and finish.num_tokens > output.num_tokens:
            return False
        failure = self._failure_of(finish)
        if finish.reason == "rejected" and failure is not None:
            self.was_accepted = False
            self.fail(failure)
            return True
        self.ended_at = now
        usage = msgspec.structs.replace(
            finish.usage,
            completion_tokens=output.num_tokens,
            num_restarts=finish.usage.num_restarts + self.num_resumes,
        )
        word: api.FinishWord = "error" if finish.reason == "rejected" else finish.reason
        output.finish(word, usage, finish.stop_token_id, _detail(failure))
        if (
            self._failure is None
            and failure is not None
            and all(one.finished is not None and one.finished.error for one in self.outputs)
        ):
            self._failure = failure
        self._grew(output, 0)
        return True

    def fail(self, failure: RequestError, word: api.FinishWord = "error") -> None:
        """End the whole request; outputs a reader knows of still get their terminal event."""
        if not self.is_live:
            return
        self._failure = failure
        if self._started or any(output.num_tokens for output in self.outputs):
            for output in self.outputs:
                if output.finished is None:
                    output.finish(word, self._known_usage(output), error=_detail(failure))
                    self._mark(output)
        self._wake()

    def expire(self, now: float) -> None:
        """No scheduler counts its time: end it when that has passed, as a scheduler would."""
        if now >= self.prepared.deadline:
            self.fail(self._error("DEADLINE", "the time-out passed while the scheduler was lost"), "deadline")

    def resubmission(self, number: int, now: float, accepted: bool) -> Submit | None:
        """The same request for a scheduler that does not know it: what was delivered, and what budget is left."""
        for output in self.outputs:
            if output.finished is None and output.stop_string is not None:
                output.finish("stop", self._known_usage(output))
                self._grew(output, 0)
        self.expire(now)
        if not self.is_live:
            return None
        self.number = number
        finished = tuple(output.index for output in self.outputs if output.finished is not None)
        known = bool(finished) or any(output.num_tokens for output in self.outputs)
        resumed = tuple(output.token_bytes() for output in self.outputs) if known else ()
        return self.prepared.submit(number, self.prepared.deadline - now, resumed, finished, accepted)

    def beat(self, beat_seconds: float, limit_seconds: float) -> None:
        """Once a beat: a reader that did not come back for `limit_seconds` is slow."""
        self._beats_without_reader = 0 if self._waiter is not None else self._beats_without_reader + 1
        if self._reader is not None and self._beats_without_reader * beat_seconds >= limit_seconds:
            self._refuse_slow_reader(f"nothing was read for {limit_seconds:g} s")

    # ---- read by a door

    async def take(self) -> Sequence[api.Event]:
        """What happened since the last call; waits for something. Empty at the end. Raises `RequestError`."""
        self._reader = asyncio.current_task()
        self._beats_without_reader = 0
        if self._prompt_logprobs:
            await asyncio.sleep(0)  # there are many of them: others come in between
        while True:
            if events := self._collect():
                return events
            if self._failure is not None:
                raise self._failure
            if all(output.read_end for output in self.outputs):
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def slow_reader(self) -> RequestError | None:
        """Why the reader was cancelled, when it was this stream that cancelled it."""
        return self._failure if self.is_slow else None

    def _collect(self) -> list[api.Event]:
        if not self._dirty and not self._prompt_logprobs:
            return []
        events: list[api.Event] = []
        if not self._started:
            self._started = True
            events.append(self.prepared.started())
        if self._prompt_logprobs:
            width = 2 + len(self._prompt_logprobs[0].top_ids) + len(self._prompt_logprobs[0].named_ids)
            first = self._num_prompt_logprobs + 1 - len(self._prompt_logprobs)
            entries = self._prompt_logprobs[: max(1, MAX_CANDIDATES // width)]
            del self._prompt_logprobs[: len(entries)]
            events.append(api.PromptLogprobs(first, tuple(with_text(entry, self._token_bytes) for entry in entries)))
            if self._prompt_logprobs:
                return events
        dirty, self._dirty = self._dirty, []
        for output in dirty:
            delta = output.delta(self.prepared.return_token_ids, self._token_bytes)
            if delta is not None:
                events.append(delta)
            if output.finished is not None and not output.read_end:
                output.read_end = True
                events.append(output.finished)
        self._unread_bytes = 0
        return events

    def _grew(self, output: OutputBuffer, num_bytes: int) -> None:
        self._mark(output)
        if self._waiter is not None:
            self._wake()
            return
        self._unread_bytes += num_bytes
        if self._unread_bytes > self._max_unread_bytes and self._reader is not None:
            self._refuse_slow_reader(f"more than {self._max_unread_bytes} bytes were left unread")

    def _mark(self, output: OutputBuffer) -> None:
        if output not in self._dirty:
            self._dirty.append(output)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _refuse_slow_reader(self, message: str) -> None:
        if self.is_slow:
            return
        live = self.is_live
        self.is_slow = True
        for output in self.outputs:
            output.ended = True
        self._failure = self._error("SLOW_READER", f"slow reader: {message}")
        self._dirty.clear()
        self._prompt_logprobs.clear()
        if live:
            self._abort(self, "slow_reader", -1)
        if self._reader is not None and self._waiter is None:
            self._reader.cancel(self._failure)
        self._wake()

    def _known_usage(self, output: OutputBuffer) -> Usage:
        """What is known here of an output whose scheduler is gone: tokens, no times."""
        return Usage(len(self.prepared.prompt), 0, output.num_tokens, 0.0, 0.0, 0.0, num_restarts=self.num_resumes)

    def _failure_of(self, finish: Finish) -> RequestError | None:
        if finish.reason == "deadline":
            return self._error("DEADLINE", finish.message or "the request's time-out passed")
        if not finish.error and finish.reason not in ("error", "rejected"):
            return None
        reason = finish.error if finish.error in REASONS else "BUG"
        message = finish.message or reason
        if REASONS[reason].status == "INTERNAL":
            log.error("request %r output %d: %s: %s", self.prepared.request_id, finish.output_index, reason, message)
            message = INTERNAL_TEXTS.get(reason, "internal error")
        return self._error(reason, message, finish.field, finish.retry_after_seconds)

    def _error(self, reason: str, message: str, field: str = "", retry_after_seconds: float = 0.0) -> RequestError:
        tokens = sum(output.num_tokens for output in self.outputs)
        return RequestError(
            reason,
            message,
            field=field,
            retry_after_seconds=retry_after_seconds,
            request_id=self.prepared.request_id,
            metadata={"completion_tokens": str(tokens)} if tokens else {},
        )


def _detail(failure: RequestError | None) -> api.ErrorDetail | None:
    return api.ErrorDetail(failure.reason, failure.message, failure.retryable) if failure is not None else None
