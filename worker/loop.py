"""A worker's conversation with the scheduler: hello, ready, then plans in order and an answer to each.

What runs the plans is an `Executor`: the model's `Runner`, or anything that keeps the same promises.
"""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import zmq

from quire.proto.messages.plans import (
    GENESIS,
    ExpertTokens,
    GroupFacts,
    PlanMessage,
    Ready,
    StepAck,
    StepPlan,
    StepResult,
    Stop,
    Welcomed,
    WorkerFailed,
    WorkerHello,
    plan_hash,
)
from quire.proto.messages.requests import PROTOCOL_VERSION, ModelFacts
from quire.proto.process import exit_codes
from quire.proto.transport.channel import Dealer, PeerUnreachable
from quire.proto.transport.wire import Frames, WireError
from quire.worker.memory.shortage import MemoryTaken
from quire.worker.step.result_thread import ResultThread

HELLO_SECONDS = 5.0
REPORT_SECONDS = 1.0
"""Between two reports beside the steps."""

_REASON_LIMIT = 2000

_log = logging.getLogger(__name__)


class Launched(Protocol):
    """A step the device works on."""

    def done(self) -> bool:
        """True once collecting it does not wait."""
        ...


F = TypeVar("F", bound=Launched)


class Executor(Protocol[F]):
    """Runs plans. Both are called in the order of the plans; any exception ends the worker."""

    def launch(self, plan: StepPlan) -> F:
        """Queue the step, if the device allows without waiting for the step before."""
        ...

    def collect(self, step: F) -> StepResult:
        """Wait for a launched step."""
        ...

    def close(self) -> None:
        """Let go of what must be gone before the group is. Every launched step was collected."""
        ...


@dataclass(frozen=True, slots=True)
class Started(Generic[F]):
    """An executor that has run its first real step, and what its rank announces."""

    executor: Executor[F]
    facts: ModelFacts
    group: GroupFacts
    digest: str
    phases: tuple[tuple[str, float], ...]
    memory: tuple[tuple[str, int], ...] = ()
    """(kind, bytes) of its device."""
    report: Callable[[], ExpertTokens | None] | None = None
    """Gives what is to be reported beside the steps, if anything is new; None: nothing ever is."""


class StartRefused(ValueError):
    """The user must change something before this worker can start; the message names it and the remedy."""


class OrderError(ValueError):
    """A plan that does not follow the one before it: gap, repeat, other epoch, other history."""


class PlanOrder:
    """Admits plans 1, 2, 3, ... of one epoch, each naming the bytes of the one before."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._previous = GENESIS
        self.step = 0
        """The last plan admitted."""

    def admit(self, plan: StepPlan, frames: Frames) -> None:
        """Raises `OrderError`."""
        if plan.epoch != self._epoch:
            raise OrderError(f"plan {plan.step} is of epoch {plan.epoch}, this worker of {self._epoch}")
        if plan.step != self.step + 1:
            kind = "repeated or old" if plan.step <= self.step else "after a gap"
            raise OrderError(f"plan {plan.step} is {kind}: the last one was {self.step}")
        if plan.previous != self._previous:
            raise OrderError(f"plan {plan.step} follows another plan {self.step} than the one this worker has run")
        self.step = plan.step
        self._previous = plan_hash(*frames)


class Worker:
    """One rank in one epoch."""

    def __init__(self, dealer: Dealer[PlanMessage], rank: int, world_size: int, epoch: int) -> None:
        self._dealer = dealer
        self._rank = rank
        self._world_size = world_size
        self._epoch = epoch
        self._order = PlanOrder(epoch)
        self._reports = False
        """This rank answers plans with results; known once the executor has started."""
        self.explain: Callable[[Exception], Exception] = lambda error: error
        """Turns an error of the executor into one that a user understands, a `MemoryTaken`; others stay as they are."""
        self.failure: Exception | None = None
        """Kept with all it holds: graphs and communicators of a failed group must not be taken apart, only left."""

    def run(self, start: Callable[[], Started[F]]) -> int:
        """Send the hello, start the executor, serve until Stop; the exit code of the process."""
        if not self._join():
            return exit_codes.WORKER_NOT_WELCOMED
        try:
            started = start()
            self._dealer.send(self._ready(started))
            self._reports = self._rank == started.group.reporter
            _log.info("ready: %d blocks, %d tokens of context", started.facts.num_blocks, started.facts.max_model_len)
            reason = self._serve(started.executor, started.report)
        except StartRefused as refusal:
            _log.error("refused: %s", refusal)
            self.failure = refusal
            self._report(refusal)
            return exit_codes.WORKER_REFUSED
        except Exception as error:
            self.failure = error
            explained = self.explain(error)
            if isinstance(explained, MemoryTaken):  # it says all, a traceback nothing more
                _log.error("failed at step %d: %s", self._order.step, explained)
            else:
                _log.exception("failed at step %d", self._order.step)
            self._report(explained)
            return exit_codes.WORKER_FAILED
        _log.info("stopped after step %d: %s", self._order.step, reason)
        return exit_codes.SUCCESS

    def _join(self) -> bool:
        try:
            self._dealer.send(WorkerHello(PROTOCOL_VERSION, self._epoch, self._rank, self._world_size), HELLO_SECONDS)
            answer = self._dealer.receive(HELLO_SECONDS)
        except (PeerUnreachable, WireError) as error:
            _log.error("hello failed: %s", error)
            return False
        if isinstance(answer, Welcomed) and answer.epoch == self._epoch:
            return True
        _log.error("hello was not welcomed within %g s; the answer was %r", HELLO_SECONDS, answer)
        return False

    def _ready(self, started: Started[F]) -> Ready:
        return Ready(
            self._epoch,
            self._rank,
            started.facts,
            started.group,
            started.digest,
            started.phases,
            started.memory,
        )

    def _serve(self, executor: Executor[F], report: Callable[[], ExpertTokens | None] | None) -> str:
        """Run plans until Stop; its reason. The next plan is launched before the last is collected, if it is there."""
        poller = zmq.Poller()
        poller.register(self._dealer.socket, zmq.POLLIN)
        patience, next_report = None if report is None else int(1000 * REPORT_SECONDS), 0.0
        with ResultThread(executor.collect) as results:
            poller.register(results.descriptor, zmq.POLLIN)
            while True:
                ready = dict(poller.poll(patience))
                if results.descriptor in ready:
                    self._answer(results.take())
                if report is not None and (now := time.monotonic()) >= next_report:
                    next_report = now + REPORT_SECONDS
                    if (news := report()) is not None:
                        self._dealer.send(news)
                received = self._dealer.receive_frames(0) if self._dealer.socket in ready else None
                if received is None:
                    continue
                frames, message = received
                match message:
                    case StepPlan():
                        self._order.admit(message, frames)
                        self._launch(executor, message, results)
                    case Stop():
                        while results.num_waiting:
                            self._answer(results.take())
                        return message.reason
                    case Welcomed():
                        raise OrderError("welcomed twice: the scheduler took this worker for a new one")

    def _launch(self, executor: Executor[F], plan: StepPlan, results: ResultThread[F]) -> None:
        step = executor.launch(plan)
        if step.done() and not results.num_waiting:  # a device that works while the step is queued is done already
            self._answer(executor.collect(step))
        else:
            results.put(step)

    def _answer(self, result: StepResult) -> None:
        if self._reports:
            self._dealer.send(result)
        else:
            self._dealer.send(StepAck(result.epoch, self._rank, result.step, result.device_seconds))

    def _report(self, error: Exception) -> None:
        kind = "" if isinstance(error, MemoryTaken) else f"{type(error).__name__}: "
        reason = f"{kind}{error}"[:_REASON_LIMIT]
        try:
            self._dealer.send(WorkerFailed(self._epoch, self._rank, self._order.step, reason))
        except PeerUnreachable as unreachable:
            _log.error("the scheduler was not told: %s", unreachable)


def identity(rank: int, epoch: int) -> bytes:
    """Name of a worker's socket: never the same twice, so a late message cannot reach a successor."""
    return f"worker-{rank}-{epoch}-{uuid.uuid4().hex}".encode()


class Phases:
    """Wall-clock seconds of the start-up phases, in order."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._ended: list[tuple[str, float]] = []

    def end(self, name: str) -> None:
        """The time since the last phase's end was `name`."""
        now = time.perf_counter()
        self._ended.append((name, now - self._begun))
        self._begun = now
        _log.info("phase %s took %.3f s", *self._ended[-1])

    @property
    def ended(self) -> tuple[tuple[str, float], ...]:
        return tuple(self._ended)
