"""The frontends' knowledge: every output's reference stream, what was delivered, and how it ended."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import oracle
from admission import Verdict
from fake_memory import Broken, demand

from quire.proto.messages.errors import REASONS
from quire.proto.messages.media import Media
from quire.proto.messages.requests import Finish, OutputLogprobs, Outputs, Submit
from quire.proto.transport.wire import ints, unpack

Key = tuple[bytes, int]
"""(frontend, request number)."""


@dataclass(slots=True)
class Output:
    """One output of one request, as its frontend sees it."""

    stream: oracle.Stream
    delivered: list[int] = field(default_factory=list)
    num_logprobs: int = 0
    resumed: int = 0
    finish: Finish | None = None
    aborted: str = ""
    """Reason with which its frontend aborted it; empty: it did not."""
    bad: bool = False
    """A step of it gave numbers that are not finite."""
    lost: bool = False
    """A step of it ran on an image whose file was lost."""
    deaths: int = 0
    """Worker groups that died under it, in this scheduler's life."""

    @property
    def is_whole(self) -> bool:
        """The output ended by its own last token."""
        by_itself = self.finish is not None and self.finish.reason in ("stop", "length")
        return by_itself and len(self.delivered) == len(self.stream.tokens) and not self.aborted


@dataclass(slots=True)
class Request:
    """One request and what must come of it."""

    key: Key
    submit: Submit
    prompt: list[int]
    salt: bytes
    arrival: float
    order: int
    verdict: Verdict
    outputs: list[Output]
    started: bool = False
    """One of its outputs was admitted to a slot once."""
    prompt_logprobs: dict[int, int] = field(default_factory=dict)
    """Output index -> prompt positions priced so far."""
    deadline: float = 0.0

    @property
    def seed(self) -> int:
        return self.submit.params.seed

    @property
    def live(self) -> bool:
        return any(output.finish is None for output in self.outputs)

    @property
    def work(self) -> int:
        """Tokens its outputs will run at most, if nothing is run twice."""
        return self.submit.n * (len(self.prompt) + self.submit.params.max_tokens)

    def resubmission(self, now: float) -> Submit:
        """The request as a frontend sends it to a new scheduler: with what was delivered already."""
        old = self.submit
        is_known = any(output.delivered or output.finish for output in self.outputs)
        return Submit(
            old.number,
            old.label,
            old.prompt,
            old.params,
            n=old.n,
            priority=old.priority,
            timeout_seconds=max(0.001, self.deadline - now),
            cache_salt=old.cache_salt,
            adapter=old.adapter,
            resumed=tuple(ints(output.delivered) for output in self.outputs) if is_known else (),
            finished_outputs=tuple(i for i, output in enumerate(self.outputs) if output.finish),
            accepted=True,
            media=old.media,
        )


class Clients:
    """All requests of one run. Every check of what a client sees is here."""

    def __init__(
        self,
        now: Callable[[], float],
        allowed_errors: Callable[[Request, Output], set[str]],
        log: Callable[[str], None],
    ) -> None:
        self._now = now
        self._allowed_errors = allowed_errors
        self.requests: dict[Key, Request] = {}
        self.by_seed: dict[int, Request] = {}
        self.live: dict[Key, Request] = {}
        self.conversations: deque[list[int]] = deque(maxlen=10)
        """Prompts with their answers: what a next turn of the same chat begins with."""
        self.num_drained = 0
        """Outputs that a drain's time-out ended."""
        self.on_bad_end: Callable[[int, int], None] = lambda seed, index: None
        self._log = log

    def add(self, request: Request) -> None:
        self.requests[request.key] = self.by_seed[request.seed] = request
        self.live[request.key] = request

    def remove(self, frontend: bytes) -> None:
        """A frontend's lease ended: nothing may come for its requests from now on."""
        for request in [r for r in self.live.values() if r.key[0] == frontend]:
            del self.live[request.key]
            for output in request.outputs:
                output.aborted = "lost"

    def tenant_of(self, seed: int) -> bytes:
        demand(seed in self.by_seed, f"a plan admits seed {seed}, which nobody submitted")
        return self.by_seed[seed].salt

    def media_of(self, seed: int) -> tuple[Media, ...]:
        return self.by_seed[seed].submit.media

    def receive(self, frontend: bytes, outputs: Outputs) -> None:
        numbers = np.frombuffer(outputs.numbers, "<i8").tolist()
        indices, positions = unpack(outputs.output_indices).tolist(), unpack(outputs.positions).tolist()
        tokens = unpack(outputs.token_ids).tolist()
        demand(len(numbers) == len(indices) == len(positions) == len(tokens), "the columns of Outputs differ in length")
        demand(numbers or outputs.finishes or outputs.logprobs, "an empty Outputs")
        for number, index, position, token in zip(numbers, indices, positions, tokens, strict=True):
            self._token((frontend, number), index, position, token)
        for logprobs in outputs.logprobs:
            self._logprobs((frontend, logprobs.number), logprobs)
        for finish in outputs.finishes:
            self._finish((frontend, finish.number), finish)

    def _output(self, key: Key, index: int) -> tuple[Request, Output]:
        request = self.live.get(key)
        if request is None:
            raise Broken(f"something for {key}, which does not live")
        if not 0 <= index < len(request.outputs):
            raise Broken(f"{key} has no output {index}")
        output = request.outputs[index]
        if output.finish is not None:
            raise Broken(f"{key} output {index}: something after its end")
        return request, output

    def _token(self, key: Key, index: int, position: int, token: int) -> None:
        request, output = self._output(key, index)
        stream = output.stream.tokens
        if position != len(output.delivered) or token not in stream[position : position + 1]:
            name = f"{key} (seed {request.seed}) output {index}"
            demand(position == len(output.delivered), f"{name}: token {position} after {len(output.delivered)}")
            demand(position < len(stream), f"{name}: token {position} after its end at {len(stream)}")
            raise Broken(f"{name}: token {position} is {token}, alone it is {stream[position]}")
        output.delivered.append(token)

    def _logprobs(self, key: Key, logprobs: OutputLogprobs) -> None:
        request, output = self._output(key, logprobs.output_index)
        name = f"{key} output {logprobs.output_index}"
        ids = [entry.token_id for entry in logprobs.entries]
        first = logprobs.first_position
        if logprobs.prompt:
            demand(request.submit.params.prompt_logprobs >= 0, f"{name}: prompt logprobs nobody asked for")
            demand(
                first == request.prompt_logprobs.get(logprobs.output_index, 1), f"{name}: prompt logprobs at {first}"
            )
            demand(ids == request.prompt[first : first + len(ids)], f"{name}: prompt logprobs of other tokens")
            request.prompt_logprobs[logprobs.output_index] = first + len(ids)
        else:
            demand(request.submit.params.logprobs >= 0, f"{name}: logprobs nobody asked for")
            demand(first == output.num_logprobs, f"{name}: logprobs at {first} after {output.num_logprobs}")
            demand(ids == output.delivered[first : first + len(ids)], f"{name}: logprobs of other tokens")
            output.num_logprobs += len(ids)

    def _finish(self, key: Key, finish: Finish) -> None:
        request, output = self._output(key, finish.output_index)
        name = f"{key} (seed {request.seed}) output {finish.output_index}"
        self._log(f"  {name} ends: {finish.reason} {finish.error} after {len(output.delivered)} tokens")
        output.finish = finish
        self.num_drained += finish.error == "DRAINING" and finish.reason == "error"
        demand(finish.num_tokens == len(output.delivered), f"{name}: {finish.num_tokens} tokens claimed")
        getattr(self, f"_check_{finish.reason}")(name, request, output, finish)
        if finish.reason != "rejected":
            self._check_usage(name, request, output, finish)
        if output.delivered:
            self.conversations.append(request.prompt + output.delivered)
        if not request.live:
            del self.live[key]

    def _check_stop(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        if output.aborted == "stop_string":
            demand(finish.stop_token_id == -1, f"{name}: its frontend stopped it, not token {finish.stop_token_id}")
            return
        demand(output.stream.reason == "stop", f"{name}: stopped, alone it ends by {output.stream.reason}")
        demand(len(output.delivered) == len(output.stream.tokens), f"{name}: stopped after {len(output.delivered)}")
        demand(finish.stop_token_id == output.stream.stop_token_id, f"{name}: stopped by {finish.stop_token_id}")
        self._check_complete(name, request, output, finish)

    def _check_length(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        demand(output.stream.reason == "length", f"{name}: length, alone it ends by {output.stream.reason}")
        demand(len(output.delivered) == len(output.stream.tokens), f"{name}: length after {len(output.delivered)}")
        self._check_complete(name, request, output, finish)

    def _check_complete(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        params = request.submit.params
        if params.logprobs >= 0:
            demand(
                output.num_logprobs == len(output.delivered),
                f"{name}: {output.num_logprobs} logprobs of {len(output.delivered)} tokens",
            )
        if params.prompt_logprobs >= 0 and finish.output_index == 0 and not output.resumed:
            priced = request.prompt_logprobs.get(0, 1)
            demand(
                priced == len(request.prompt), f"{name}: prompt logprobs of {priced} of {len(request.prompt)} tokens"
            )

    def _check_abort(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        demand(output.aborted == "client", f"{name}: aborted, its frontend sent {output.aborted!r}")

    def _check_deadline(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        demand(self._now() >= request.deadline, f"{name}: deadline {request.deadline - self._now():.3f} s too early")

    def _check_rejected(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        demand(finish.error in REASONS, f"{name}: {finish.error!r} is no reason")
        demand(finish.error in request.verdict.may, f"{name}: rejected with {finish.error}: {finish.message}")
        demand(len(output.delivered) == output.resumed, f"{name}: rejected after it ran")

    def _check_error(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        demand(finish.error in REASONS, f"{name}: {finish.error!r} is no reason")
        allowed = self._allowed_errors(request, output)
        if finish.error in ("NUMERICAL", "MEDIA_LOST"):
            self.on_bad_end(request.seed, finish.output_index)
        demand(finish.error in allowed, f"{name}: error {finish.error} ({finish.message}), allowed: {allowed}")

    def _check_usage(self, name: str, request: Request, output: Output, finish: Finish) -> None:
        usage = finish.usage
        demand(usage.prompt_tokens == len(request.prompt), f"{name}: {usage.prompt_tokens} prompt tokens billed")
        demand(usage.completion_tokens == len(output.delivered), f"{name}: {usage.completion_tokens} tokens billed")
        most = len(request.prompt) if output.resumed else max(0, len(request.prompt) - 1)
        demand(0 <= usage.cached_tokens <= most, f"{name}: {usage.cached_tokens} cached tokens")
        # An output preempted by a plan that came to nothing is still in the workers' table when they die.
        exact = usage.num_restarts == output.deaths or (
            usage.num_preemptions > 0 and usage.num_restarts < output.deaths
        )
        demand(exact, f"{name}: {usage.num_restarts} restarts, {output.deaths} were seen")
        seconds = usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds
        demand(min(seconds) >= 0, f"{name}: negative seconds {seconds}")
        demand(
            sum(seconds) <= self._now() - request.arrival + 1e-6,
            f"{name}: {seconds} seconds in {self._now() - request.arrival:.3f}",
        )
