"""A scheduler core at work: clock, codec, worker group, and the check of every instruction of the core."""

import random
from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from admission import needed_blocks
from answers import Answers
from clients import Clients, Key, Output, Request
from drafts import Drafts
from fairness import Fairness
from fake_encoder import FakeEncoder
from fake_group import FakeGroup
from fake_memory import demand
from knobs import Knobs

from quire.proto.messages.introspection import LoadReply
from quire.proto.messages.message import EngineState
from quire.proto.messages.plans import StepAck, StepResult
from quire.proto.messages.requests import AbortedLabels, ModelFacts, Outputs
from quire.proto.transport.wire import Frames, encode, scheduler_decoder, worker_decoder
from quire.scheduler.core import invariants
from quire.scheduler.core.core import Core
from quire.scheduler.introspection.answer import Question, answer
from quire.scheduler.state import events

_OUTPUTS = scheduler_decoder()
_RESULTS = worker_decoder()


class Engine:
    """One core after another, one worker group after another. `audit_every`: events between two invariant checks."""

    def __init__(
        self,
        knobs: Knobs,
        drafts: Drafts,
        rng: random.Random,
        audit_every: int,
        log: Callable[[str], None] | None,
    ) -> None:
        self.knobs = knobs
        self.drafts = drafts
        self.rng = rng
        self.audit_every = audit_every
        self.verbose = log is not None
        self.log = log or (lambda line: None)
        self.now = rng.uniform(0, 1e6)
        self.clients = Clients(lambda: self.now, self._allowed_errors, self.log)
        self.core = Core(knobs.config)
        self.answers = Answers(self.clients, knobs.group.max_in_flight)
        self.state: EngineState = "starting"
        """The state in the core's latest `ChangeState`."""
        self.group: FakeGroup | None = None
        self.fairness = Fairness(self.core, self.clients)
        self.epoch = 0
        self.num_blocks = knobs.num_blocks
        self.outboxes: list[deque[Frames]] = []
        """Messages of each rank that the core has not received yet."""
        self.received: deque[Frames] = deque(maxlen=20)
        """Newest messages that the core has received in this epoch."""
        self.ghosts: deque[tuple[int, Frames]] = deque(maxlen=60)
        """(step, frames): the last messages of dead groups, received or not."""
        self.drain_until: float | None = None
        self.num_held = 0
        """Requests that their frontends hold until this scheduler's workers are ready."""
        self.num_drained = 0
        """Number of reports that the drain is over."""
        self.num_handled = 0
        self._idle_plans = 0
        """Plans since the request that is served first got a token or ended."""
        self._patience = 0
        """Number of `_idle_plans` that is allowed."""
        self._seen: tuple[int, Key, int] | None = None
        self.expected_counts: tuple[int, ...] = ()
        """Counts that the next `AbortedLabels` must have."""
        self.num_asked = 0
        """Live outputs at the latest question about the load."""
        self._digest = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Over every instruction so far."""
        return self._digest.hexdigest()

    @property
    def facts(self) -> ModelFacts:
        return self.knobs.facts(self.num_blocks)

    def new_core(self) -> None:
        """The scheduler process is another one, which knows nothing."""
        self.log("a new scheduler")
        self.core = Core(self.knobs.config)
        self.fairness = Fairness(self.core, self.clients)
        self.answers = Answers(self.clients, self.knobs.group.max_in_flight)
        self.group, self.state, self.drain_until = None, "starting", None
        self.num_drained = self.clients.num_drained = 0
        self.outboxes.clear()
        self.received.clear()
        self.ghosts.clear()

    def new_group(self) -> None:
        """All ranks of a new epoch are ready, perhaps with another number of blocks."""
        self.epoch += self.rng.choice((1, 1, 3))
        config = self.knobs.config
        if self.rng.random() < 0.3:
            self.num_blocks = max(2, self.num_blocks + self.rng.choice((-1, 2)))
        facts = self.facts
        self.group = FakeGroup(
            self.epoch,
            facts,
            config.world_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.clients.tenant_of,
            self.knobs.is_bad,
            self._on_bad,
            self.drafts.num_accepted,
            self._encoder(),
        )
        self.fairness = Fairness(self.core, self.clients)
        self.clients.on_bad_end = self.group.poison
        self.outboxes = [deque() for _ in range(config.world_size)]
        self.log(f"group {self.epoch} is ready with {self.num_blocks} blocks")
        self.handle(events.GroupReady(self.epoch, self.knobs.group, facts))
        for request in self.clients.live.values():
            demand(needed_blocks(request, facts) <= self.num_blocks, f"{request.key} can never fit")

    def _encoder(self) -> FakeEncoder | None:
        images = self.knobs.images
        if images is None:
            return None
        return FakeEncoder(images.facts, images.max_patches, self.clients.media_of, images.is_lost, self._on_lost)

    def bury_group(self) -> None:
        """The group dies; the core does not know it yet."""
        assert self.group is not None
        self.log(f"group {self.epoch} dies")
        for slot in self.group.slots.values():
            output = self.clients.by_seed[slot.params.seed].outputs[slot.output_index]
            if output.finish is None:
                output.deaths += 1
        for box in self.outboxes:
            self.received.extend(box)
            box.clear()
        self.ghosts.extend((_RESULTS.decode(*frames).step, frames) for frames in self.received)
        self.received.clear()
        self.group = None

    def deliver(self, rank: int) -> None:
        """The next message of this rank arrives."""
        assert self.group is not None
        box = self.outboxes[rank]
        frames = box.popleft()
        if rank != self.knobs.group.reporter and box and self.rng.random() < 0.2:
            frames = box.popleft()  # an acknowledgement covers all steps before
        self.received.append(frames)
        message = _RESULTS.decode(*frames)
        assert isinstance(message, StepResult | StepAck)
        self.group.acknowledged[rank] = message.step
        if isinstance(message, StepResult):
            self.group.on_result(message.step)
        self.receive(frames)

    def receive(self, frames: Frames) -> None:
        """The core receives a worker's message."""
        message = _RESULTS.decode(*frames)
        self.handle(events.StepDone(message) if isinstance(message, StepResult) else events.StepAcked(message))

    def pass_time(self) -> None:
        self.now += self.rng.random() * 0.002

    def handle(self, event: events.Event, at_once: bool = False) -> None:
        self.num_handled += 1
        if not at_once:
            self.pass_time()
        instructions = self.core.handle(event, self.now)
        if self.knobs.weak_hash and self.core.group_epoch is not None:
            self.core.group_epoch.memory.index._key_of = _six_bits
        self._execute(instructions)
        self._audit()
        if self.rng.random() < self.knobs.plan_rate:
            self.plan()

    def ask(self, question: Question) -> None:
        """A question changes nothing: no time passes, no plan follows."""
        self._execute([events.Reply(b"frontend-0", answer(question, self.core, self.now, tuple))])

    def plan(self) -> None:
        self.fairness.before()
        self.drafts.offer(self.core)
        instructions = self.core.plan(self.now)
        busy = any(self.outboxes)
        self._execute(instructions)
        if self.group and self.clients.live and not busy and self.state in ("ready", "draining"):
            demand(any(self.outboxes), f"{len(self.clients.live)} requests live, nothing is in flight, no plan comes")
        self._audit()

    def _audit(self) -> None:
        if self.num_handled % self.audit_every == 0:
            invariants.check(self.core)

    def _execute(self, instructions: list[events.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case events.SendPlan():
                    self._digest.update(b"".join(instruction.frames))
                    self._run_plan(instruction)
                case events.SendOutputs():
                    frames = encode(instruction.outputs)
                    self._digest.update(instruction.frontend + b"".join(frames))
                    outputs = _OUTPUTS.decode(*frames)
                    assert isinstance(outputs, Outputs)
                    self.clients.receive(instruction.frontend, outputs)
                case events.Reply():
                    self._digest.update(b"".join(encode(instruction.message)))
                    self._check_reply(instruction)
                case events.ChangeState():
                    self._digest.update(instruction.state.encode())
                    self.log(f"state {instruction.state}: {instruction.detail}")
                    self.state = instruction.state
                    demand(self.core.state == self.state, f"state {self.core.state} after announcing {self.state}")
                case events.ReportDrained():
                    self.num_drained += 1
                    demand(self.drain_until is not None, "drained, nobody asked")
                    demand(self.num_drained == 1, "drained twice")
                    is_late = self.drain_until is not None and self.now >= self.drain_until
                    demand(is_late or not self.num_held, f"drained while {self.num_held} are still to come again")
                    demand(not self.clients.live, f"drained while {len(self.clients.live)} live")
                    ended = self.clients.num_drained
                    demand(instruction.num_ended == ended, f"the drain ended {ended}, not {instruction.num_ended}")

    def _run_plan(self, plan: events.SendPlan) -> None:
        demand(self.group is not None, f"plan {plan.step} without a group")
        assert self.group is not None
        group = self.group
        result = group.run(plan.frames)
        demand(plan.epoch == group.epoch and plan.step == group.step, "SendPlan and its frames name different steps")
        in_flight = group.step - min(group.acknowledged)
        demand(in_flight <= self.knobs.group.max_in_flight, f"{in_flight} plans in flight")
        for rank, box in enumerate(self.outboxes):
            is_reporter = rank == self.knobs.group.reporter
            box.append(encode(result if is_reporter else StepAck(group.epoch, rank, group.step)))
        if self.verbose:
            self.log(f"plan {group.epoch}.{group.step}: {group.last_plan}")
        for seed, _, _ in group.admitted:
            self.clients.by_seed[seed].started = True
        self.fairness.check(group)
        self._check_progress()

    def _check_progress(self) -> None:
        """Whoever is served first (best priority, then earliest arrival) gains a token or ends, at the latest when
        those that were in before it have done all their work."""
        if not self.clients.live:
            return
        best = min(self.clients.live.values(), key=lambda request: (request.submit.priority, request.order))
        gained = sum(len(output.delivered) + (output.finish is not None) for output in best.outputs)
        seen = self.epoch, best.key, gained
        if seen != self._seen:
            self._seen, self._idle_plans, self._patience = seen, 0, 0
        before = [request for request in self.clients.live.values() if request.started or request is best]
        self._patience = max(self._patience, 10 + 2 * sum(request.work for request in before))
        self._idle_plans += 1
        demand(
            self._idle_plans <= self._patience, f"{best.key} is first, but got nothing from {self._idle_plans} plans"
        )

    def _check_reply(self, reply: events.Reply) -> None:
        message = reply.message
        if isinstance(message, AbortedLabels):
            demand(message.query == 7 and message.counts == self.expected_counts, f"labels answered {message}")
            return
        demand(message.query == 9, f"answered {message}")
        if not isinstance(message, LoadReply):
            answer = _OUTPUTS.decode(*encode(message))
            assert not isinstance(answer, Outputs)
            self.answers.check(answer)  # type: ignore[arg-type]
            return
        load = message.load
        demand(load.state == self.state, f"load says {load.state}, state is {self.state}")
        config = self.knobs.config
        demand(load.num_running <= config.max_num_seqs, f"{load.num_running} run")
        demand(0 <= load.prefix_hits <= load.prefix_queries, f"prefix hits {load}")
        demand(0 <= load.used_slots_share <= 1, f"share {load.used_slots_share}")
        if self.group is not None:
            demand(load.num_blocks == self.num_blocks, f"{load.num_blocks} blocks, not {self.num_blocks}")
            demand(0 <= load.free_blocks <= load.num_blocks, f"{load.free_blocks} free blocks")
        demand(load.num_running <= self.num_asked, f"{load.num_running} run of {self.num_asked} that lived")

    def _allowed_errors(self, request: Request, output: Output) -> set[str]:
        """The errors with which an output may end now."""
        allowed = {"NUMERICAL"} if output.bad else set()
        if output.lost:
            allowed.add("MEDIA_LOST")
        if output.deaths > self.knobs.config.max_restarts_per_request:
            allowed.add("POISON_REQUEST")
        if self.state == "failed":
            allowed.add("FAILED")
        if self.drain_until is not None and self.now >= self.drain_until:
            allowed.add("DRAINING")
        if output.aborted == "slow_reader":
            allowed.add("SLOW_READER")
        if self.group is not None and needed_blocks(request, self.group.facts) > self.num_blocks:
            allowed.add("EXCEEDS_CAPACITY")
        return allowed

    def _on_lost(self, seed: int, index: int) -> None:
        self.clients.by_seed[seed].outputs[index].lost = True

    def _on_bad(self, seed: int, index: int, position: int) -> None:
        request = self.clients.by_seed[seed]
        output = request.outputs[index]
        if position - len(request.prompt) < len(output.stream.tokens):  # else a wasted row after the end
            output.bad = True


def _six_bits(parent: bytes, content: bytes) -> bytes:
    return bytes([blake2b(parent + content, digest_size=1).digest()[0] % 64])
