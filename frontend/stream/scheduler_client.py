"""The frontend's line to the scheduler: who we are, what lives, what arrives, and what happens when it goes silent.

Promise: no token is lost or repeated. A token counts only at the position that is next. When the scheduler was lost
(silence, another life, or it forgot us), every live request waits until another one has workers (`Patience`, and no
longer than its own deadline) and is submitted again under a new number, as prompt plus delivered tokens; whatever still
arrives under an old number is nobody's.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
import numpy as np

from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.patience import Patience
from quire.frontend.stream.prepared_request import Prepared
from quire.frontend.stream.progress import Progress
from quire.frontend.stream.queries import Queries
from quire.frontend.stream.request_stream import RequestStream
from quire.frontend.stream.silence import Silence
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import RequestError
from quire.proto.messages.introspection import ExplainReply, LoadReply, MetricsReply, StatusReply
from quire.proto.messages.message import AbortReason, EngineState
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Abort,
    AbortedLabels,
    FrontendBeat,
    Hello,
    Outputs,
    Refused,
    SchedulerBeat,
    SchedulerMessage,
    Submit,
    Welcome,
)
from quire.proto.transport.channel import AsyncDealer
from quire.proto.transport.wire import WireError, unpack

LinkState = EngineState | Literal["lost"]

UNREAD_STEPS = 16
"""Steps that any reader may lag behind, however much one step adds."""

log = logging.getLogger("quire.frontend")


class SchedulerLink:
    """One task sends, one receives, one beats; everything else is plain calls on the loop."""

    def __init__(
        self,
        config: FrontendConfig,
        dealer: AsyncDealer[SchedulerMessage],
        tokenizer: TextTokenizer,
        metrics: Metrics,
    ) -> None:
        self.state: LinkState = "starting"
        self.detail = "waiting for the scheduler"
        self.welcome: Welcome | None = None
        self.num_bad_messages = 0
        self.on_change: Callable[[], None] = lambda: None
        self._config = config
        self._dealer = dealer
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._queries = Queries(self._post, self._check_reachable)
        self.ask = self._queries.ask  # `await ask(LoadQuery)`; raises `RequestError` when the scheduler does not answer
        self._outbox: deque[msgspec.Struct] = deque()
        self._posted = asyncio.Event()
        self._epoch = 0
        self._silence = Silence()
        self._progress = Progress(self._now())
        self._patience = Patience(config.resume_window_seconds, config.startup_seconds)
        self._unsent: set[int] = set()
        """Numbers of requests that the lost scheduler never got: nobody has accepted them."""

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def is_waiting(self) -> bool:  # for a scheduler, or for its workers
        return self._patience.is_waiting

    def progress(self) -> LinkState | Literal["stalled"]:
        """The engine's state, or "stalled": a request is open and the step counter stands still."""
        return "stalled" if self.state == "ready" and self._progress.is_stalled(self._now()) else self.state

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._send, self._receive, self._beat):
                tasks.create_task(work())

    # ---- for the pipeline

    def open(self, prepared: Prepared) -> RequestStream:
        """Submit a request. Raises `RequestError` when the engine takes none now."""
        self.check_accepts()
        max_unread_bytes = max(self._config.slow_reader_bytes, UNREAD_STEPS * prepared.step_bytes)
        stream = RequestStream(prepared, self._tokenizer, self._abort, max_unread_bytes, self._metrics)
        stream.number = next(self._numbers)
        self._streams[stream.number] = stream
        self._post(prepared.submit(stream.number, max(prepared.deadline - self._now(), 0.001)))
        return stream

    def close(self, stream: RequestStream) -> None:
        """The reader is done with it, or gone: what still runs is aborted. Does not wait."""
        if self._streams.pop(stream.number, None) is not None and stream.is_live:
            self._post(Abort((stream.number,), "client"))

    def end(self, reason: str, message: str) -> None:
        """Every open request fails now, and is aborted."""
        if self._streams:
            self._post(Abort(tuple(self._streams), "client"))
        self._fail_all(reason, message)

    def check_accepts(self) -> None:
        """Raises `RequestError` unless the engine takes new requests."""
        if self.state not in ("ready", "recovering"):
            reason = "SCHEDULER_LOST" if self.state == "lost" else self.state.upper()
            text = f"the engine is {self.state}" + (f": {self.detail}" if self.detail else "")
            raise RequestError(reason, text, retry_after_seconds=0.0 if self.state == "failed" else 1.0)

    def _check_reachable(self) -> None:
        if self.welcome is None:
            raise RequestError("STARTING", "the scheduler has not been heard yet", retry_after_seconds=1.0)
        if self.state == "lost":
            raise RequestError("SCHEDULER_LOST", "the scheduler is not reachable", retry_after_seconds=1.0)

    def _abort(self, stream: RequestStream, reason: AbortReason, output_index: int) -> None:
        self._post(Abort((stream.number,), reason, output_index))

    # ---- out

    def _post(self, message: msgspec.Struct) -> None:
        self._outbox.append(message)
        self._posted.set()

    async def _send(self) -> None:
        while True:
            await self._posted.wait()
            self._posted.clear()
            while self._outbox:
                message = self._outbox[0]
                await self._dealer.send(message)
                if self._outbox and self._outbox[0] is message:  # a new life may have emptied it meanwhile
                    self._outbox.popleft()

    async def _beat(self) -> None:
        while True:
            if self.welcome is not None and self._silence.seconds() > self._config.lost_after_seconds:
                self._lose(f"silent for {self._config.lost_after_seconds:g} s")
            if not self._outbox:
                known = self.welcome is not None and self.state != "lost"
                self._post(FrontendBeat() if known else Hello("frontend", PROTOCOL_VERSION))
            if why := self._patience.spent(self._now()):
                self._patience.end()
                self._fail_all("SCHEDULER_LOST", why)
            for stream in tuple(self._streams.values()):
                if self._patience.is_waiting:
                    stream.expire(self._now())
                stream.beat(self._config.beat_seconds, self._config.slow_reader_seconds)
            self._patience.overslept(await self._silence.sleep(self._config.beat_seconds), self._now())

    # ---- in

    async def _receive(self) -> None:
        while True:
            try:
                message = await self._dealer.receive()
                self._silence.broken()
                self._on_message(message)
            except (WireError, LookupError, ValueError) as error:
                self.num_bad_messages += 1
                log.error("message of the scheduler dropped: %s", error)

    def _on_message(self, message: SchedulerMessage) -> None:
        match message:
            case Outputs():
                self._on_outputs(message)
            case SchedulerBeat():
                self._progress.beat((message.epoch, message.step), not self._streams, self._now())
            case Welcome():
                self._on_welcome(message)
            case Refused():
                self._lose(f"refused: {message.reason}", is_suspect=False)
                if not self._outbox:
                    self._post(Hello("frontend", PROTOCOL_VERSION))
            case LoadReply() | MetricsReply() | StatusReply() | ExplainReply() | AbortedLabels():
                self._queries.answer(message)

    def _on_outputs(self, outputs: Outputs) -> None:
        if outputs.epoch < self._epoch:
            return
        self._epoch = outputs.epoch
        streams = self._streams
        for finish in outputs.finishes:
            if (stream := streams.get(finish.number)) is not None:
                stream.announce(finish)
        gaps: list[RequestStream] = []
        now = self._now()
        numbers = np.frombuffer(outputs.numbers, dtype="<i8").tolist()
        self._metrics.count("generation_tokens_total", (), len(numbers))
        columns = (unpack(outputs.output_indices), unpack(outputs.positions), unpack(outputs.token_ids))
        for number, index, position, token in zip(numbers, *(column.tolist() for column in columns), strict=True):
            stream = streams.get(number)
            if stream is not None and not stream.push(index, position, token, now):
                gaps.append(stream)
        for embedding in outputs.embeddings:
            if (stream := streams.get(embedding.number)) is not None:
                stream.vector = embedding.vector
        for logprobs in outputs.logprobs:
            if (stream := streams.get(logprobs.number)) is not None:
                stream.push_logprobs(logprobs)
        for finish in outputs.finishes:
            if (stream := streams.get(finish.number)) is not None and not stream.finish(finish, now):
                gaps.append(stream)
        for stream in dict.fromkeys(gaps):
            log.error("request %r: tokens are missing, submitting it again", stream.prepared.request_id)
            self._post(Abort((stream.number,), "client"))
            self._resubmit((stream,), is_suspect=True)

    def _on_welcome(self, welcome: Welcome) -> None:
        if welcome.protocol_version != PROTOCOL_VERSION:
            self._lose(f"it speaks protocol version {welcome.protocol_version}, this frontend {PROTOCOL_VERSION}")
            return
        another_life = self.welcome is not None and welcome.life != self.welcome.life
        if another_life:
            self._lose("another scheduler took its place")
            self._outbox.clear()
            self._epoch = 0
        elif self.state == "lost" and self._streams:
            # the same scheduler was out of reach: it may still run them, or have ended them when our lease ran out
            self._post(Abort(tuple(self._streams), "client"))
        self.welcome = welcome
        self._change(welcome.state, welcome.detail)
        if not self._patience.is_waiting:
            return
        if welcome.state == "failed":
            self._patience.end()
            self._fail_all("FAILED", f"the engine has failed: {welcome.detail}")
        elif welcome.state != "starting" and welcome.facts is not None:  # a drain, too, takes what was accepted
            self._patience.end()
            self._resubmit(tuple(self._streams.values()), self._patience.is_suspect)
            self._unsent.clear()
        else:
            self._patience.found(self._now())

    # ---- loss and return

    def _lose(self, why: str, is_suspect: bool = True) -> None:
        self._patience.suspect(is_suspect)
        if self.state == "lost":
            return
        log.warning("scheduler lost: %s; %d requests wait", why, len(self._streams))
        if self.welcome is not None:
            self._patience.lost(self._now())
        self._unsent |= {message.number for message in self._outbox if isinstance(message, Submit)}
        self._change("lost", why)

    def _resubmit(self, streams: Iterable[RequestStream], is_suspect: bool) -> None:
        for stream in streams:
            accepted = stream.number not in self._unsent
            self._streams.pop(stream.number, None)
            stream.num_resumes += 1
            stream.num_losses += is_suspect
            if stream.num_losses > self._config.max_resumes:
                why = "the engine was lost too often"
                stream.fail(RequestError("SCHEDULER_LOST", why, request_id=stream.prepared.request_id))
            submit = stream.resubmission(next(self._numbers), self._now(), accepted)
            if submit is not None:
                self._metrics.count("request_resumes_total")
                self._post(submit)
                self._streams[stream.number] = stream

    def _fail_all(self, reason: str, message: str) -> None:
        for stream in tuple(self._streams.values()):
            stream.fail(RequestError(reason, message, request_id=stream.prepared.request_id, retry_after_seconds=1.0))

    def _change(self, state: LinkState, detail: str) -> None:
        if state != self.state:
            self._progress.restart(self._now())
        self.state, self.detail = state, detail
        self.on_change()
