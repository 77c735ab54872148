"""The scheduler's loop: sockets and clock around the pure core. Only this module and `sender` do I/O.

One turn: take what arrived (results first, they free the device's next plan), let the core plan, send plans before
outputs, beat once a second.
"""

import gc
import logging
import math
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import zmq

from quire.proto.messages.introspection import Figure, Question
from quire.proto.messages.plans import (
    ExpertTokens,
    Ready,
    StepAck,
    StepResult,
    Stop,
    WorkerFailed,
    WorkerHello,
    WorkerMessage,
)
from quire.proto.messages.requests import PROTOCOL_VERSION, FrontendBeat, FrontendMessage, Hello, Refused
from quire.proto.transport.channel import REQUEST_LIMIT_BYTES, Router
from quire.proto.transport.wire import frontend_decoder, worker_decoder
from quire.scheduler.audit import AuditSchedule
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import invariants
from quire.scheduler.core.core import Core
from quire.scheduler.errors import ResultError
from quire.scheduler.introspection.answer import answer
from quire.scheduler.introspection.stats_line import StatsLine
from quire.scheduler.peers.expert_load import ExpertLoad
from quire.scheduler.peers.frontend_events import event_of
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.process_metrics import process_metrics
from quire.scheduler.peers.step_watchdog import StepWatchdog
from quire.scheduler.peers.worker_group import GroupError, WorkerGroup
from quire.scheduler.sender import Sender
from quire.scheduler.state import events

TICK_SECONDS = 0.05
IDLE_TICK_SECONDS = 0.25
"""Time between ticks where no deadline runs: an engine that waits for requests leaves the processor alone."""
BEAT_SECONDS = 1.0
COLLECT_SECONDS = 30.0
"""Longest time without a garbage collection under load."""
MESSAGES_PER_TURN = 256
"""Messages that one turn takes from each socket at most."""

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
        self._experts = ExpertLoad()
        self._watchdog = StepWatchdog(config.step_timeout_seconds)
        self._audit_schedule = AuditSchedule(config.audit_interval_steps)
        self._stats_line = StatsLine(config.log_stats_interval)
        self._life = uuid.uuid4().hex
        self._stopped = False
        self._frozen_epoch = 0
        self._next_tick = self._next_beat = self._next_collect = 0.0
        self._frontends: Router[FrontendMessage] = Router(
            context, config.frontends_address, frontend_decoder(), REQUEST_LIMIT_BYTES
        )
        self._workers: Router[WorkerMessage] = Router(context, config.workers_address, worker_decoder())
        self._sender = Sender(self._core, self._life, self._leases, self._group, self._frontends, self._workers)

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
        self._sender.stop_workers("the scheduler stops")
        self._frontends.close()
        self._workers.close()

    def _turn(self, now: float) -> None:
        instructions = self._receive(self._workers, self._on_worker, now)
        self._plan(now)
        instructions += self._receive(self._frontends, self._on_frontend, now)
        if now >= self._next_tick:
            self._next_tick = now + IDLE_TICK_SECONDS
            instructions += self._tick(now)
        if not self._core.is_idle:
            self._next_tick = min(self._next_tick, now + TICK_SECONDS)
        self._plan(now)
        self._sender.execute_all(instructions)
        self._audit(now)
        self._collect_garbage(now)

    def _plan(self, now: float) -> None:
        begin = time.monotonic()
        if instructions := self._core.plan(now):
            planned_at = time.monotonic()
            self._sender.execute(instructions)
            self._core.on_sent(planned_at, planned_at - begin, time.monotonic() - planned_at)

    def _process_metrics(self, now: float) -> tuple[Figure, ...]:
        peers = self._frontends, self._workers, self._leases, self._group
        return process_metrics(*peers, self._core.group_epoch, self._experts, now)

    def _receive(self, router: Router[M], react: Reaction[M], now: float) -> list[events.Instruction]:
        instructions: list[events.Instruction] = []
        for _ in range(MESSAGES_PER_TURN):
            received = router.receive()
            if received is None:
                break
            instructions += react(*received, now)
        return instructions

    def _on_worker(self, identity: bytes, message: WorkerMessage, now: float) -> list[events.Instruction]:
        rank = self._group.rank_of(identity)
        match message:
            case StepResult() if rank is not None and rank == self._group.reporter:
                return self._on_result(message, now)
            case StepAck() if rank == message.rank:
                return self._core.handle(events.StepAcked(message), now)
            case ExpertTokens() if rank is not None and rank == self._group.reporter:
                self._experts.take(self._group.epoch, message, now)
                return []
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
            self._sender.send_worker(identity, welcomed)
            if 0 < previous < message.epoch:
                return self._core.handle(events.GroupGone(previous, "a newer worker group arrived"), now)
        except GroupError as refusal:
            log.error("worker refused: %s", refusal)
            self._sender.send_worker(identity, Stop(str(refusal)))
        return []

    def _on_ready(self, identity: bytes, ready: Ready, now: float) -> list[events.Instruction]:
        event = self._group.ready(identity, ready)
        if event is None:
            return []
        shape, phases = event.group, self._group.phases
        log.info("group ready epoch=%d shape=%s facts=%s phases=%s", event.epoch, shape, event.facts, phases)
        return self._core.handle(event, now)

    def _on_frontend(self, identity: bytes, message: FrontendMessage, now: float) -> list[events.Instruction]:
        if isinstance(message, Hello):
            self._on_hello(identity, message, now)
            return []
        if not self._leases.touch(identity, now):
            # it sent something before HELLO, or its lease ended while it was stopped: it must introduce itself again
            self._sender.send_frontend(identity, Refused("say HELLO first"))
            return []
        if isinstance(message, FrontendBeat):
            return []
        is_supervisor = self._leases.role(identity) == "supervisor"
        if isinstance(message, Question):
            return [events.Reply(identity, answer(message, self._core, now, partial(self._process_metrics, now)))]
        event = event_of(identity, message, supervisor=is_supervisor)
        if event is None:
            log.warning("%s may not come from a frontend; dropped", type(message).__name__)
            return []
        return self._guarded(event, now)

    def _guarded(self, event: events.Event, now: float) -> list[events.Instruction]:
        """Feed the core. A submission that meets a bug of ours is refused; it must not end all the others."""
        try:
            return self._core.handle(event, now)
        except Exception:
            if not isinstance(event, events.Submitted):
                raise
            log.exception("request %r broke the scheduler", event.submit.label)
            invariants.check(self._core)  # nothing is served from a broken state: the supervisor starts a new scheduler
            return self._core.refuse(event, "BUG", "the request broke the scheduler")

    def _on_hello(self, identity: bytes, hello: Hello, now: float) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            reason = f"protocol version {hello.protocol_version} of the {hello.role} is not {PROTOCOL_VERSION}"
            self._sender.send_frontend(identity, Refused(f"{reason} of the scheduler"))
            return
        self._leases.join(identity, hello.role, now)
        log.info("%s joined: %s", hello.role, identity.decode(errors="replace"))
        self._sender.welcome(identity)

    def _tick(self, now: float) -> list[events.Instruction]:
        instructions = self._core.handle(events.Tick(), now)
        if self._watchdog.hangs(self._core.oldest_plan, now):
            reason = f"no answer to step {self._core.step} within {self._config.step_timeout_seconds:g} s"
            log.error("worker group hangs epoch=%d: %s", self._core.epoch, reason)
            instructions += self._core.handle(events.GroupGone(self._core.epoch, reason), now)
        for identity in self._leases.expired(now):
            instructions += self._sender.lose_frontend(identity, "its lease ended", now)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_SECONDS
            self._sender.beat()
        if line := self._stats_line.due(self._core, now):
            log.info(line)
        return instructions

    def _audit(self, now: float) -> None:
        if not self._audit_schedule.is_due(self._core):
            return
        try:
            self._check()
        except invariants.InvariantError as error:
            # never serve from a pool that failed its audit: a new epoch starts from an empty one
            log.critical("audit failed: %s", error)
            self._sender.execute(self._core.handle(events.GroupGone(self._core.epoch, f"audit failed: {error}"), now))

    def _check(self) -> None:
        invariants.check(self._core, self._audit_schedule.next_part(self._core))

    def _collect_garbage(self, now: float) -> None:
        """Collect when nothing lives, or at the latest every 30 s: cycles are rare here, pauses are not wanted.

        What a collection has left at rest is not walked again in this epoch: cached prefixes may be millions.
        """
        if now >= self._next_collect and (self._core.num_live == 0 or now >= self._next_collect + COLLECT_SECONDS):
            self._next_collect = now + BEAT_SECONDS
            if self._core.epoch != self._frozen_epoch:
                self._frozen_epoch = self._core.epoch
                gc.unfreeze()
            gc.collect()
            if self._core.num_live == 0:
                gc.freeze()
