"""The only I/O of the scheduler: sockets and clock around the pure core.

One turn: take what arrived (results first, they free the device's next plan), let the core plan, send plans before
outputs, beat once a second.
"""

import gc
import logging
import math
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import zmq

from quire.proto.messages.introspection import Figure
from quire.proto.messages.plans import Ready, StepAck, StepResult, Stop, WorkerFailed, WorkerHello, WorkerMessage
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Drained,
    FrontendBeat,
    FrontendMessage,
    Hello,
    Refused,
    SchedulerBeat,
    Welcome,
)
from quire.proto.transport.channel import REQUEST_LIMIT_BYTES, PeerUnreachable, Router
from quire.proto.transport.wire import frontend_decoder, worker_decoder
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import invariants
from quire.scheduler.core.core import Core
from quire.scheduler.errors import ResultError
from quire.scheduler.introspection.answer import Question, answer
from quire.scheduler.peers.frontend_events import event_of
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.process_metrics import outside
from quire.scheduler.peers.step_watchdog import Watch
from quire.scheduler.peers.worker_group import GroupError, WorkerGroup
from quire.scheduler.state import events

TICK_SECONDS = 0.05
BEAT_SECONDS = 1.0
COLLECT_SECONDS = 30.0
MESSAGES_PER_TURN = 256
BUSY_AUDIT_FACTOR = 500

M = TypeVar("M")
Reaction = Callable[[bytes, M, float], list[events.Instruction]]

log = logging.getLogger("quire.scheduler")


class SchedulerLoop:
    """Owns both sockets and the core until `stop()`."""

    def __init__(self, config: SchedulerConfig, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._config = config
        self._core = Core(config)
        self._group = WorkerGroup(config.world_size)
        self._leases = Leases(config.frontend_lease_seconds)
        self._watch = Watch(config.step_timeout_seconds)
        self._life = uuid.uuid4().hex
        self._stopped = False
        self._next_tick = self._next_beat = self._next_collect = 0.0
        self._audited_step = 0
        self._detail = ""
        self._late: list[events.Instruction] = []
        """What a failed send led to: an end must not overtake the tokens that were taken before it."""
        self._frontends: Router[FrontendMessage] = Router(
            context, config.frontends_address, frontend_decoder(), REQUEST_LIMIT_BYTES
        )
        self._workers: Router[WorkerMessage] = Router(context, config.workers_address, worker_decoder())

    def stop(self) -> None:
        """Leave `run` after the current turn; callable from a signal handler."""
        self._stopped = True

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._frontends.socket, zmq.POLLIN)
        poller.register(self._workers.socket, zmq.POLLIN)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in mid-step is a pause for every stream; see _collect_garbage
        log.info("listening life=%s", self._life)
        while not self._stopped:
            now = time.monotonic()
            if poller.poll(math.ceil(max(0.0, self._next_tick - now) * 1000)):
                now = time.monotonic()
            self._turn(now)
        for peer in self._group.peers:
            self._send_worker(peer, Stop("the scheduler stops"))
        self._frontends.close()
        self._workers.close()

    def _turn(self, now: float) -> None:
        asked = self._take(self._workers, self._on_worker, now)
        self._plan(now)
        asked += self._take(self._frontends, self._on_frontend, now)
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            asked += self._tick(now)
        self._plan(now)
        self._late = asked + self._late
        while self._late:
            asked, self._late = self._late, []
            self._execute(asked)
        self._audit(now)
        self._collect_garbage(now)

    def _plan(self, now: float) -> None:
        begin = time.monotonic()
        if asked := self._core.plan(now):
            drafted = time.monotonic()
            self._execute(asked)
            self._core.sent(drafted, drafted - begin, time.monotonic() - drafted)

    def _outside(self) -> tuple[Figure, ...]:
        return outside(self._frontends, self._workers, self._leases, self._group, self._core.era)

    def _take(self, router: Router[M], react: Reaction[M], now: float) -> list[events.Instruction]:
        asked: list[events.Instruction] = []
        for _ in range(MESSAGES_PER_TURN):
            received = router.receive()
            if received is None:
                break
            asked += react(*received, now)
        return asked

    def _on_worker(self, identity: bytes, message: WorkerMessage, now: float) -> list[events.Instruction]:
        rank = self._group.rank_of(identity)
        match message:
            case StepResult() if rank == 0:
                return self._on_result(message, now)
            case StepAck() if rank == message.rank:
                return self._core.handle(events.StepAcked(message), now)
            case WorkerHello() | Ready():
                return self._on_joining(identity, message, now)
            case WorkerFailed() if rank is not None:
                log.error(
                    "worker failed rank=%d epoch=%d step=%d: %s", rank, message.epoch, message.step, message.reason
                )
                return self._core.handle(events.GroupGone(message.epoch, message.reason), now)
        log.warning("message of a stranger or past worker dropped: %s", type(message).__name__)
        return []

    def _on_result(self, result: StepResult, now: float) -> list[events.Instruction]:
        try:
            return self._core.handle(events.StepDone(result), now)
        except ResultError as error:
            log.error("step %d of epoch %d: %s", result.step, result.epoch, error)
            return self._core.handle(events.GroupGone(result.epoch, str(error)), now)

    def _on_joining(self, identity: bytes, message: WorkerHello | Ready, now: float) -> list[events.Instruction]:
        try:
            if isinstance(message, Ready):
                return self._on_ready(identity, message, now)
            previous = self._group.epoch
            welcomed = self._group.hello(identity, message)
            log.info("worker joined rank=%d epoch=%d", message.rank, message.epoch)
            self._send_worker(identity, welcomed)
            if 0 < previous < message.epoch:
                return self._core.handle(events.GroupGone(previous, "a newer worker group arrived"), now)
        except GroupError as refusal:
            log.error("worker refused: %s", refusal)
            self._send_worker(identity, Stop(str(refusal)))
        return []

    def _on_ready(self, identity: bytes, ready: Ready, now: float) -> list[events.Instruction]:
        event = self._group.ready(identity, ready)
        if event is None:
            return []
        log.info("group ready epoch=%d facts=%s phases=%s", event.epoch, event.facts, self._group.phases)
        return self._core.handle(event, now)

    def _on_frontend(self, identity: bytes, message: FrontendMessage, now: float) -> list[events.Instruction]:
        if isinstance(message, Hello):
            self._on_hello(identity, message, now)
            return []
        if not self._leases.touch(identity, now):
            # it spoke before HELLO, or its lease ended while it was stopped: it must introduce itself again
            self._send_frontend(identity, Refused("say HELLO first"))
            return []
        if isinstance(message, FrontendBeat):
            return []
        is_supervisor = self._leases.role(identity) == "supervisor"
        if isinstance(message, Question):
            return [events.Reply(identity, answer(message, self._core, now, self._outside))]
        event = event_of(identity, message, supervisor=is_supervisor)
        if event is None:
            log.warning("%s is not for a frontend to say; dropped", type(message).__name__)
            return []
        return self._guarded(event, now)

    def _guarded(self, event: events.Event, now: float) -> list[events.Instruction]:
        """Feed the core. A submission that trips over a bug of ours is refused; it must not end all the others."""
        try:
            return self._core.handle(event, now)
        except Exception:
            if not isinstance(event, events.Submitted):
                raise
            log.exception("request %r broke the scheduler", event.submit.label)
            invariants.check(self._core)  # harmed state is not served from: the supervisor starts a new scheduler
            return self._core.refuse(event, "BUG", "the request broke the scheduler")

    def _on_hello(self, identity: bytes, hello: Hello, now: float) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            reason = f"protocol version {hello.protocol_version} of the {hello.role} is not {PROTOCOL_VERSION}"
            self._send_frontend(identity, Refused(f"{reason} of the scheduler"))
            return
        self._leases.join(identity, hello.role, now)
        log.info("%s joined: %s", hello.role, identity.decode(errors="replace"))
        self._send_frontend(identity, self._welcome())

    def _welcome(self) -> Welcome:
        core, limits = self._core, self._config.limits
        lives = core.era is not None
        return Welcome(PROTOCOL_VERSION, self._life, core.state, limits, core.facts, self._detail, core.epoch, lives)

    def _tick(self, now: float) -> list[events.Instruction]:
        asked = self._core.handle(events.Tick(), now)
        if self._watch.hangs(self._core.oldest_plan, now):
            reason = f"no answer to step {self._core.step} within {self._config.step_timeout_seconds:g} s"
            log.error("worker group hangs epoch=%d: %s", self._core.epoch, reason)
            asked += self._core.handle(events.GroupGone(self._core.epoch, reason), now)
        for identity in self._leases.expired(now):
            asked += self._lose_frontend(identity, "its lease ended", now)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_SECONDS
            beat = SchedulerBeat(self._core.epoch, self._core.step)
            for identity in self._leases.peers:
                self._send_frontend(identity, beat)
        return asked

    def _lose_frontend(self, identity: bytes, why: str, now: float) -> list[events.Instruction]:
        log.warning("frontend lost: %s: %s", identity.decode(errors="replace"), why)
        self._leases.leave(identity)
        return self._core.handle(events.FrontendLost(identity), now)

    def _execute(self, asked: list[events.Instruction]) -> None:
        for instruction in asked:
            match instruction:
                case events.SendPlan():
                    for peer in self._group.peers:
                        self._send_worker(peer, instruction.frame)
                case events.SendOutputs():
                    self._send_frontend(instruction.frontend, instruction.outputs)
                case events.Reply():
                    self._send_frontend(instruction.frontend, instruction.message)
                case events.ChangeState():
                    self._detail = instruction.detail
                    log.info("state=%s epoch=%d %s", instruction.state, self._core.epoch, instruction.detail)
                    for peer in self._leases.peers:
                        self._send_frontend(peer, self._welcome())
                case events.ReportDrained():
                    log.info("drained ended=%d", instruction.num_ended)
                    self._tell_supervisor(Drained(instruction.num_ended))

    def _tell_supervisor(self, message: Drained) -> None:
        for peer in self._leases.peers:
            if self._leases.role(peer) == "supervisor":
                self._send_frontend(peer, message)

    def _send_frontend(self, identity: bytes, message: object) -> None:
        try:
            self._frontends.send(identity, message)  # type: ignore[arg-type]
        except PeerUnreachable as error:
            if self._leases.role(identity) == "frontend":
                self._late += self._lose_frontend(identity, str(error), time.monotonic())

    def _send_worker(self, identity: bytes, message: object) -> None:
        try:
            self._workers.send(identity, message)  # type: ignore[arg-type]
        except PeerUnreachable as error:
            log.error("worker unreachable: %s", error)
            self._late += self._core.handle(events.GroupGone(self._group.epoch, str(error)), time.monotonic())

    def _audit(self, now: float) -> None:
        """Check every invariant when nothing lives, or at last after many steps: it takes tens of milliseconds."""
        interval = self._config.audit_interval_steps
        steps = self._core.step - self._audited_step
        if steps < 0:  # a new epoch counts from 1 again
            self._audited_step = steps = 0
        if not interval or steps < interval or (self._core.num_live and steps < interval * BUSY_AUDIT_FACTOR):
            return
        self._audited_step = self._core.step
        try:
            invariants.check(self._core)
        except invariants.InvariantError as error:
            # never serve from a pool that failed its audit: a new epoch starts from an empty one
            log.critical("audit failed: %s", error)
            self._execute(self._core.handle(events.GroupGone(self._core.epoch, f"audit failed: {error}"), now))

    def _collect_garbage(self, now: float) -> None:
        """Collect when nothing lives, or at the latest every 30 s: cycles are rare here, pauses are not wanted."""
        if now >= self._next_collect and (self._core.num_live == 0 or now >= self._next_collect + COLLECT_SECONDS):
            self._next_collect = now + BEAT_SECONDS
            gc.collect()
