"""The frontend's client of the scheduler: it submits requests, receives outputs, and handles the scheduler's loss.

Promise: no token is lost or repeated. A token counts only at the position that is next. When the scheduler is lost
(it is silent, was replaced, or no longer knows this frontend), every live request waits until a scheduler has workers
(`LossGrace`, and no longer than its own deadline) and is submitted again under a new number, as prompt plus delivered
tokens; what still arrives under an old number is dropped.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.stream.loss_grace import LossGrace
from quire.frontend.stream.open_streams import OpenStreams
from quire.frontend.stream.outbox import Outbox
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.stream.queries import Queries, QueryAnswer
from quire.frontend.stream.request_stream import RequestStream
from quire.frontend.stream.silence_clock import SilenceClock
from quire.frontend.stream.step_progress import StepProgress
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import RequestError
from quire.proto.messages.message import AbortReason, EngineState
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Abort,
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
from quire.proto.transport.wire import WireError

ClientState = EngineState | Literal["lost"]
"""The engine's state as this frontend sees it; lost: no scheduler answers."""

UNREAD_STEPS = 16
"""Number of steps that any reader may lag behind, however much one step adds."""

log = logging.getLogger("quire.frontend")


class SchedulerClient:
    """One task sends, one receives, one beats; everything else is plain calls on the event loop."""

    def __init__(
        self,
        config: FrontendConfig,
        dealer: AsyncDealer[SchedulerMessage],
        metrics: Metrics,
    ) -> None:
        self.state: ClientState = "starting"
        self.detail = "waiting for the scheduler"
        self.welcome: Welcome | None = None
        self.num_bad_messages = 0
        self.on_change: Callable[[], None] = lambda: None
        self._config = config
        self._dealer = dealer
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._streams = OpenStreams(metrics)
        self._outbox = Outbox(dealer, self._on_unsendable)
        self._queries = Queries(self._outbox.post, self._check_reachable)
        self.ask = self._queries.ask  # `await ask(LoadQuery)`; raises `RequestError` when the scheduler does not answer
        self._silence_clock = SilenceClock()
        self._step_progress = StepProgress(self._now())
        self._notified: ClientState | Literal["stalled"] = self.state
        self._grace = LossGrace(config.resume_window_seconds, config.startup_seconds)
        self._unsent: set[int] = set()
        """Numbers of the requests that the lost scheduler never received: nobody has accepted them."""

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def is_waiting(self) -> bool:
        """True while requests wait for a scheduler, or for its workers."""
        return self._grace.is_waiting

    @property
    def is_stalled(self) -> bool:
        """True while the scheduler owes a step, to whatever frontend, and its counter has stood still for too long."""
        return self._step_progress.is_stalled(self._now())

    def progress(self) -> ClientState | Literal["stalled"]:
        """The engine's state, or "stalled" when it should step and does not."""
        return "stalled" if self.state == "ready" and self.is_stalled else self.state

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._outbox.run, self._receive, self._beat):
                tasks.create_task(work())

    # ---- for the pipeline

    def open(self, prepared: PreparedRequest, tokenizer: TextTokenizer, accepted: bool = False) -> RequestStream:
        """Submit a request of the model with this tokenizer. Raises `RequestError` when the engine takes none now.

        A drain takes it: who asks has called `check_accepts` when it arrived, and prepared it since. `accepted`: it
        goes on with a call that the scheduler took, and is taken though the queue is full or a drain not known here.
        """
        is_draining = self.state == "draining"
        if not is_draining:
            self.check_accepts()
        max_unread_bytes = max(self._config.slow_reader_bytes, UNREAD_STEPS * prepared.step_bytes)
        stream = RequestStream(prepared, tokenizer, self._abort, max_unread_bytes, self._metrics)
        stream.number = next(self._numbers)
        self._streams.add(stream)
        self._outbox.post(
            prepared.submit(stream.number, prepared.deadline - self._now(), accepted=accepted or is_draining)
        )
        return stream

    def close(self, stream: RequestStream) -> None:
        """Abort what still runs of it: its reader is done, or gone. Does not wait."""
        if self._streams.remove(stream) and stream.is_live:
            self._outbox.post(Abort((stream.number,), "client"))

    def end(self, reason: str, message: str) -> None:
        """Fail and abort every open request now."""
        if self._streams:
            self._outbox.post(Abort(self._streams.numbers, "client"))
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
        self._outbox.post(Abort((stream.number,), reason, output_index))

    # ---- tasks

    async def _beat(self) -> None:
        while True:
            if self.welcome is not None and self._silence_clock.seconds() > self._config.lost_after_seconds:
                self._on_lost(f"silent for {self._config.lost_after_seconds:g} s")
            if not self._outbox:
                known = self.welcome is not None and self.state != "lost"
                self._outbox.post(FrontendBeat() if known else Hello("frontend", PROTOCOL_VERSION))
            self._notify_of_progress()
            if why := self._grace.expired(self._now()):
                self._grace.end()
                self._fail_all("SCHEDULER_LOST", why)
            for stream in self._streams:
                if self._grace.is_waiting:
                    stream.expire(self._now())
                stream.beat(self._config.beat_seconds, self._config.slow_reader_seconds)
            self._grace.add_pause(await self._silence_clock.sleep(self._config.beat_seconds), self._now())

    def _on_unsendable(self, message: msgspec.Struct, error: Exception) -> None:
        """A defect of this frontend: it costs the one request whose message it is."""
        why = f"{type(message).__name__} does not encode: {error}"
        log.error("message to the scheduler dropped: %s", why)
        stream = self._streams.find(message.number) if isinstance(message, Submit) else None
        if stream is not None:
            self._streams.remove(stream)
            text = f"an internal error: {why}; please report it"
            stream.fail(RequestError("BUG", text, request_id=stream.prepared.request_id))

    async def _receive(self) -> None:
        while True:
            try:
                message = await self._dealer.receive()
                self._silence_clock.on_received()
                self._on_message(message)
                if isinstance(message, Outputs) and message.logprobs:
                    await asyncio.sleep(0)  # of a long prompt they are many, and the next message may be there
            except (WireError, LookupError, ValueError) as error:
                self.num_bad_messages += 1
                log.error("message of the scheduler dropped: %s", error)

    def _on_message(self, message: SchedulerMessage) -> None:
        match message:
            case Outputs():
                self._on_outputs(message)
            case SchedulerBeat():
                self._step_progress.on_beat((message.epoch, message.step), message.is_idle, self._now())
                self._notify_of_progress()
            case Welcome():
                self._on_welcome(message)
            case Refused():
                self._on_lost(f"refused: {message.reason}", is_suspect=False)
                if not self._outbox:
                    self._outbox.post(Hello("frontend", PROTOCOL_VERSION))
            case _ if isinstance(message, QueryAnswer):
                self._queries.on_answer(message)

    def _on_outputs(self, outputs: Outputs) -> None:
        for stream in self._streams.deliver(outputs, self._now()):
            log.error("request %r: tokens are missing, submitting it again", stream.prepared.request_id)
            self._outbox.post(Abort((stream.number,), "client"))
            self._resubmit((stream,), is_suspect=True)

    def _on_welcome(self, welcome: Welcome) -> None:
        if welcome.protocol_version != PROTOCOL_VERSION:
            self._on_lost(f"it speaks protocol version {welcome.protocol_version}, this frontend {PROTOCOL_VERSION}")
            return
        another_life = self.welcome is not None and welcome.life != self.welcome.life
        if another_life:
            self._on_lost("another scheduler took its place")
            self._outbox.clear()
            self._streams.restart_epochs()
        elif self.state == "lost" and self._streams:
            # the same scheduler was out of reach: it may still run them, or have ended them when our lease ran out
            self._outbox.post(Abort(self._streams.numbers, "client"))
        self.welcome = welcome
        self._set_state(welcome.state, welcome.detail)
        if not self._grace.is_waiting:
            return
        if welcome.state == "failed":
            self._grace.end()
            self._fail_all("FAILED", f"the engine has failed: {welcome.detail}")
        elif welcome.state != "starting" and welcome.facts is not None:  # a drain, too, takes what was accepted
            self._grace.end()
            self._resubmit(self._streams, self._grace.is_suspect)
            self._unsent.clear()
        else:
            self._grace.on_found(self._now())

    # ---- loss and return

    def _on_lost(self, why: str, is_suspect: bool = True) -> None:
        self._grace.note_suspicion(is_suspect)
        if self.state == "lost":
            return
        log.warning("scheduler lost: %s; %d requests wait", why, len(self._streams))
        if self.welcome is not None:
            self._grace.on_lost(self._now())
        self._unsent |= self._outbox.submit_numbers()
        self._set_state("lost", why)

    def _resubmit(self, streams: Iterable[RequestStream], is_suspect: bool) -> None:
        for stream in streams:
            accepted = stream.number not in self._unsent
            self._streams.remove(stream)
            stream.num_resumes += 1
            stream.num_losses += is_suspect
            if stream.num_losses > self._config.max_resumes:
                why = "the engine was lost too often"
                stream.fail(RequestError("SCHEDULER_LOST", why, request_id=stream.prepared.request_id))
            submit = stream.resubmission(next(self._numbers), self._now(), accepted)
            if submit is not None:
                self._metrics.count("request_resumes_total")
                self._outbox.post(submit)
                self._streams.add(stream)

    def _fail_all(self, reason: str, message: str) -> None:
        for stream in self._streams:
            stream.fail(RequestError(reason, message, request_id=stream.prepared.request_id, retry_after_seconds=1.0))

    def _set_state(self, state: ClientState, detail: str) -> None:
        if state != self.state:
            self._step_progress.restart(self._now())
        self.state, self.detail = state, detail
        self._notified = self.progress()
        self.on_change()

    def _notify_of_progress(self) -> None:
        """Notify of the change that no message brings: steps stand still, or go on."""
        if self.progress() != self._notified:
            self._notified = self.progress()
            self.on_change()
