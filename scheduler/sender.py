"""The sending side of the loop: instructions of the core, out to workers and frontends."""

import logging
import time
from contextlib import suppress

import msgspec

from quire.proto.messages.plans import Stop, WorkerMessage
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Drained,
    FrontendMessage,
    SchedulerBeat,
    Welcome,
)
from quire.proto.transport.channel import PeerUnreachable, Router
from quire.proto.transport.wire import Frames
from quire.scheduler.core.core import Core
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.worker_group import WorkerGroup
from quire.scheduler.state import events

log = logging.getLogger("quire.scheduler")


class Sender:
    """Sends on both sockets. A peer that cannot be reached is lost, and the core is notified of it."""

    def __init__(
        self,
        core: Core,
        life: str,
        leases: Leases,
        group: WorkerGroup,
        frontends: Router[FrontendMessage],
        workers: Router[WorkerMessage],
    ) -> None:
        self._core = core
        self._life = life
        self._leases = leases
        self._group = group
        self._frontends = frontends
        self._workers = workers
        self._detail = ""
        """Detail of the newest change of state, for every later `Welcome`."""
        self._deferred: list[events.Instruction] = []
        """Instructions that a failed send led to: an end must not overtake the tokens that were taken before it."""

    def execute(self, instructions: list[events.Instruction]) -> None:
        """Carry out these instructions now."""
        for instruction in instructions:
            match instruction:
                case events.SendPlan():
                    for peer in self._group.peers:
                        self.send_worker(peer, instruction.frames)
                case events.SendOutputs():
                    self.send_frontend(instruction.frontend, instruction.outputs)
                case events.Reply():
                    self.send_frontend(instruction.frontend, instruction.message)
                case events.ChangeState():
                    self._detail = instruction.detail
                    log.info("state=%s epoch=%d %s", instruction.state, self._core.epoch, instruction.detail)
                    for peer in self._leases.peers:
                        self.welcome(peer)
                case events.ReportDrained():
                    log.info("drained ended=%d", instruction.num_ended)
                    self._notify_supervisor(Drained(instruction.num_ended))

    def execute_all(self, instructions: list[events.Instruction]) -> None:
        """Carry out these instructions, then those that failed sends led to, until none is left."""
        self._deferred = instructions + self._deferred
        while self._deferred:
            instructions, self._deferred = self._deferred, []
            self.execute(instructions)

    def send_frontend(self, identity: bytes, message: msgspec.Struct) -> None:
        try:
            self._frontends.send(identity, message)
        except PeerUnreachable as error:
            if self._leases.role(identity) == "frontend":
                self._deferred += self.lose_frontend(identity, str(error), time.monotonic())

    def send_worker(self, identity: bytes, message: msgspec.Struct | Frames) -> None:
        try:
            self._workers.send(identity, message)
        except PeerUnreachable as error:
            log.error("worker unreachable: %s", error)
            self._deferred += self._core.handle(events.GroupGone(self._group.epoch, str(error)), time.monotonic())

    def lose_frontend(self, identity: bytes, why: str, now: float) -> list[events.Instruction]:
        """The frontend is gone, and so are its lease and its requests."""
        log.warning("frontend lost: %s: %s", identity.decode(errors="replace"), why)
        self._leases.leave(identity)
        return self._core.handle(events.FrontendLost(identity), now)

    def welcome(self, identity: bytes) -> None:
        """Send the engine's state to a frontend or the supervisor."""
        core, limits = self._core, self._core.config.limits
        lives = core.group_epoch is not None
        self.send_frontend(
            identity,
            Welcome(PROTOCOL_VERSION, self._life, core.state, limits, core.facts, self._detail, core.epoch, lives),
        )

    def beat(self) -> None:
        """Send every peer of the request socket a sign of life."""
        is_idle = not self._core.num_live and self._core.oldest_plan is None
        beat = SchedulerBeat(self._core.epoch, self._core.step, is_idle)
        for identity in self._leases.peers:
            self.send_frontend(identity, beat)

    def stop_workers(self, reason: str) -> None:
        for peer in self._group.peers:
            with suppress(PeerUnreachable):  # it has ended before us
                self._workers.send(peer, Stop(reason))

    def _notify_supervisor(self, message: Drained) -> None:
        for peer in self._leases.peers:
            if self._leases.role(peer) == "supervisor":
                self.send_frontend(peer, message)
