"""The stream of one request's events: fed by the scheduler client, read by one task, bounded in between.

What a slow reader has not taken is merged, not queued; past the bound the request is aborted.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.finish_errors import error_detail, finish_error, stream_error
from quire.frontend.stream.output_buffer import OutputBuffer
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.stream.prompt_logprobs import MAX_CANDIDATES, PromptLogprobBuffer
from quire.frontend.stream.reader_watch import ReaderWatch
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto import api
from quire.proto.api import RequestError
from quire.proto.messages.message import AbortReason, Usage
from quire.proto.messages.requests import Finish, OutputLogprobs, Submit


class RequestStream:
    """Every output ends in exactly one `Finished`; a failure of the request as a whole is raised by `take`."""

    def __init__(
        self,
        prepared: PreparedRequest,
        tokenizer: TextTokenizer,
        abort: Callable[["RequestStream", AbortReason, int], None],
        max_unread_bytes: int,
        metrics: Metrics,
    ) -> None:
        self.prepared = prepared
        self.was_accepted = True
        """False once the scheduler has refused the request."""
        self.first_token_at = 0.0
        """Monotonic time of the first token; 0.0 before it."""
        self.ended_at = 0.0
        """Monotonic time at which the newest finished output ended; 0.0 before."""
        self.vector = b""
        """Embedding of the prompt, float32; empty where none was asked for."""
        self.number = -1
        """Number by which the scheduler knows the request; each resubmission has a new one."""
        self.num_resumes = 0
        self.num_losses = 0
        """Number of resumes that the request itself may have caused: see `LossGrace.is_suspect`."""
        self.is_slow = False
        self.outputs = [prepared.output(index, tokenizer) for index in range(prepared.n)]
        self._token_bytes = tokenizer.token_bytes
        self._abort = abort
        self._metrics = metrics
        self._reader = ReaderWatch(max_unread_bytes)
        self._dirty: list[OutputBuffer] = []
        """Outputs with something unread."""
        self._reading: list[OutputBuffer] = []
        """Those of them that the reader gets before all others."""
        self._prompt_logprobs = PromptLogprobBuffer()
        self._started = False
        """True once the reader got the `Started` event."""
        self._failure: RequestError | None = None

    @property
    def is_live(self) -> bool:
        """True while the scheduler still owes something."""
        return self._failure is None and any(output.finished is None for output in self.outputs)

    @property
    def failure(self) -> RequestError | None:
        """The error of the request as a whole; None while it has not failed."""
        return self._failure

    # ---- fed by the scheduler client

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
        self._on_grown(output, output.push(token_id))
        if self.prepared.stop and output.stop_string is not None and not self.is_slow:
            self._abort(self, "stop_string", output_index)
        return True

    def push_logprobs(self, message: OutputLogprobs) -> None:
        if not message.prompt:
            output = self.outputs[message.output_index]
            self._on_grown(output, output.push_logprobs(message))
        elif self._prompt_logprobs.push(message):
            self._reader.wake()

    def announce(self, finish: Finish) -> None:
        """Take note of an end before the tokens of the same step: the stop token among them has no text."""
        if finish.stop_token_id >= 0 and not self.prepared.include_stop:
            self.outputs[finish.output_index].silent_position = finish.num_tokens - 1

    def finish(self, finish: Finish, now: float) -> bool:
        """Take an output's end. False when tokens before it are missing."""
        output = self.outputs[finish.output_index]
        if output.finished is not None or self.is_slow:
            return True
        if finish.reason in ("stop", "length") and output.stop_string is None and finish.num_tokens > output.num_tokens:
            return False
        failure = finish_error(finish, self.prepared.request_id, self._num_tokens)
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
        output.finish(word, usage, finish.stop_token_id, error_detail(failure))
        if (
            self._failure is None
            and failure is not None
            and all(one.finished is not None and one.finished.error for one in self.outputs)
        ):
            self._failure = failure
        self._on_grown(output, 0)
        return True

    def fail(self, failure: RequestError, word: api.FinishWord = "error") -> None:
        """End the whole request; outputs that a reader knows still get their terminal event."""
        if not self.is_live:
            return
        self._failure = failure
        if self._started or any(output.num_tokens for output in self.outputs):
            for output in self.outputs:
                if output.finished is None:
                    output.finish(word, self._known_usage(output), error=error_detail(failure))
                    self._on_grown(output, 0)
        self._reader.wake()

    def expire(self, now: float) -> None:
        """End the request when its time has passed, as a scheduler would: there is none now."""
        if now >= self.prepared.deadline:
            self.fail(self._error("DEADLINE", "the time-out passed while the scheduler was lost"), "deadline")

    def resubmission(self, number: int, now: float, accepted: bool) -> Submit | None:
        """The request for a scheduler that does not know it, with its tokens so far; None when it has ended."""
        for output in self.outputs:
            if output.finished is None and output.stop_string is not None:
                output.finish("stop", self._known_usage(output))
                self._on_grown(output, 0)
        self.expire(now)
        if not self.is_live:
            return None
        self.number = number
        finished = tuple(output.index for output in self.outputs if output.finished is not None)
        known = bool(finished) or any(output.num_tokens for output in self.outputs)
        resumed = tuple(output.token_bytes() for output in self.outputs) if known else ()
        return self.prepared.submit(number, self.prepared.deadline - now, resumed, finished, accepted)

    def beat(self, beat_seconds: float, limit_seconds: float) -> None:
        """Called once a beat: a reader that did not come back for `limit_seconds` is slow."""
        if self._reader.on_beat(beat_seconds, limit_seconds):
            self._refuse_slow_reader(f"nothing was read for {limit_seconds:g} s")

    # ---- read by a client's task

    async def ready(self) -> None:
        """Wait until there is something to take, or an end."""
        self._reader.attach()
        while not (self._reading or self._dirty or self._prompt_logprobs or self._is_over):
            await self._reader.wait()

    async def take(self) -> Sequence[api.Event]:
        """The events since the last call; waits for some. Empty at the end. Raises `RequestError`."""
        if self._prompt_logprobs or self._reading:
            await asyncio.sleep(0)  # there are many candidates: others come in between
        while True:
            await self.ready()
            if events := self._collect():
                return events
            if self._failure is not None:
                raise self._failure
            if self._is_over:
                return ()

    def slow_reader(self) -> RequestError | None:
        """The reason why this stream cancelled its reader; None where it did not."""
        return self._failure if self.is_slow else None

    @property
    def _is_over(self) -> bool:
        """True once the reader has the end of every output, or an error awaits it."""
        return self._failure is not None or all(output.read_end for output in self.outputs)

    def _collect(self) -> list[api.Event]:
        if not (self._reading or self._dirty or self._prompt_logprobs):
            return []
        events: list[api.Event] = []
        if not self._started:
            self._started = True
            events.append(self.prepared.started())
        if self._prompt_logprobs:
            events.append(self._prompt_logprobs.take(self._token_bytes))
            if self._prompt_logprobs:
                return events
        if not self._reading:
            self._reading, self._dirty = self._dirty, []
            self._reader.on_read()
        room = MAX_CANDIDATES
        while self._reading and room > 0:
            output = self._reading.pop(0)
            for delta in output.deltas(self.prepared.return_token_ids, self._token_bytes, self.prepared.by_token):
                room -= len(delta.logprobs) * self.prepared.num_candidates
                events.append(delta)
            if output.finished is not None and not output.read_end:
                output.read_end = True
                events.append(output.finished)
        return events

    def _on_grown(self, output: OutputBuffer, num_bytes: int) -> None:
        if output not in self._dirty:
            self._dirty.append(output)
        if self._reader.on_grown(num_bytes):
            self._refuse_slow_reader(f"more than {self._reader.max_unread_bytes} bytes were left unread")

    def _refuse_slow_reader(self, message: str) -> None:
        if self.is_slow:
            return
        live = self.is_live
        self.is_slow = True
        for output in self.outputs:
            output.ended = True
        self._failure = self._error("SLOW_READER", f"slow reader: {message}")
        self._reading.clear()
        self._dirty.clear()
        self._prompt_logprobs.clear()
        if live:
            self._abort(self, "slow_reader", -1)
        self._reader.cancel(self._failure)
        self._reader.wake()

    def _known_usage(self, output: OutputBuffer) -> Usage:
        """The usage of an output whose scheduler is gone: its tokens, no times."""
        return Usage(len(self.prepared.prompt), 0, output.num_tokens, 0.0, 0.0, 0.0, num_restarts=self.num_resumes)

    @property
    def _num_tokens(self) -> int:
        return sum(output.num_tokens for output in self.outputs)

    def _error(self, reason: str, message: str) -> RequestError:
        return stream_error(reason, message, self.prepared.request_id, self._num_tokens)
