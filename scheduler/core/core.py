"""The scheduler as a pure state machine: events in, instructions out. No socket, clock, thread or randomness.

Equal events at equal times give byte-equal instructions.
"""

from quire.proto.messages.message import EngineState
from quire.proto.messages.plans import StepAck, StepResult
from quire.proto.messages.requests import Abort, AbortedLabels, AbortLabels, Embedding, ModelFacts, Submit
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import admission
from quire.scheduler.core.accept import accept
from quire.scheduler.core.admission import Refusal
from quire.scheduler.core.effects import Effects
from quire.scheduler.core.live_requests import Ledger
from quire.scheduler.core.policy import Policy
from quire.scheduler.core.step_log import Timeline
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.events import (
    Aborted,
    ChangeState,
    DrainAsked,
    Event,
    FrontendLost,
    GroupGaveUp,
    GroupGone,
    GroupReady,
    Instruction,
    LabelsAborted,
    Reply,
    ReportDrained,
    SendPlan,
    StepAcked,
    StepDone,
    Submitted,
    Tick,
)

RESUME_SECONDS = 2.0
"""After a scheduler's first worker group is ready: what frontends take at most to send again what waited for it."""


class Core:
    """One engine. `now` is seconds of a monotonic clock and never goes back."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.state: EngineState = "starting"
        self.epoch = 0
        """Epoch of the newest ready worker group; 0 before the first."""
        self.facts: ModelFacts | None = None
        self.counters = Counters()
        self.timeline = Timeline()
        self.ledger = Ledger(self.counters)
        self.group_epoch: Epoch | None = None
        """Slots, memory and plans of the living worker group; None while no group lives."""
        self._policy: Policy | None = None
        self._drain_deadline: float | None = None
        self._num_drained: int | None = None
        """Outputs the drain's time-out ended; None when no drain is to be reported."""
        self._resumed_until = float("inf")
        """Until then frontends may still send again what an earlier scheduler had accepted: nothing is drained yet."""

    @property
    def step(self) -> int:
        """The newest plan of the living group; 0 without one."""
        return 0 if self.group_epoch is None else self.group_epoch.in_flight.step

    @property
    def oldest_plan(self) -> tuple[int, int] | None:
        """Epoch and step of the oldest plan that some rank has not acknowledged."""
        return None if self.group_epoch is None else self.group_epoch.in_flight.oldest

    @property
    def num_live(self) -> int:
        """Outputs without a terminal event."""
        return self.ledger.num_live

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event. Raises `ResultError` when a worker's result does not fit its plan: replace the group."""
        effects = Effects()
        match event:
            case StepDone(result):
                self._step_done(result, effects, now)
            case StepAcked(ack):
                self._step_acked(ack, now)
            case Submitted(frontend, submit):
                self._submit(frontend, submit, effects, now)
            case Aborted(frontend, abort):
                self._abort(frontend, abort, effects, now)
            case LabelsAborted(frontend, ask):
                self._abort_labels(frontend, ask, effects, now)
            case FrontendLost(frontend):
                requests = self.ledger.registry.of_frontend(frontend)
                self.ledger.end_all(requests, "abort", self.group_epoch, None, now)
            case GroupReady():
                self._group_ready(event, effects, now)
            case GroupGone(epoch, reason):
                if self.group_epoch is None or epoch != self.group_epoch.epoch:
                    self.counters.num_stale += 1
                else:
                    self._lose_group(effects, now)
                    self._become("recovering", reason, effects)
            case GroupGaveUp(reason):
                self._lose_group(effects, now)
                self._fail(reason, effects, now)
            case DrainAsked(timeout_seconds):
                self._drain_deadline = now + timeout_seconds
                self._num_drained = 0
                self._become("draining", "", effects)
            case Tick():
                pass
        self._look_at_clock(effects, now)
        return effects.instructions(self.epoch)

    def refuse(self, event: Submitted, reason: str, message: str) -> list[Instruction]:
        """End a request that never entered, for a reason the core cannot find itself.

        Raises `InvariantError` when it did enter.
        """
        if self.ledger.registry.find(event.frontend, event.submit.number) is not None:
            raise InvariantError("I6", f"request {event.submit.number} is live and cannot be refused")
        effects = Effects()
        self.ledger.refuse(event.frontend, event.submit, Refusal(reason, "", message), effects)
        return effects.instructions(self.epoch)

    def plan(self, now: float) -> list[Instruction]:
        """The next plan, when fewer than `PIPELINE_DEPTH` are unacknowledged and some row can run."""
        if self.group_epoch is None or self._policy is None or not self.group_epoch.in_flight.has_room:
            return []
        in_flight = self.group_epoch.in_flight
        plan = self._policy.plan_step(now)
        if plan is None:
            return []
        self.timeline.on_planned(plan, now, self.ledger.live_since, in_flight.is_idle, self.counters.num_preemptions)
        frame = in_flight.send(plan)
        return [SendPlan(self.group_epoch.epoch, plan.step, frame)]

    def sent(self, at: float, schedule_seconds: float, send_seconds: float) -> None:
        """The newest plan took so long to make, until `at`, and then to hand to the workers. For metrics only."""
        if self.group_epoch is not None and self.group_epoch.in_flight.plans:
            plan = self.group_epoch.in_flight.plans[-1]
            plan.sent_at, plan.schedule_seconds, plan.send_seconds = at, schedule_seconds, send_seconds

    def _submit(self, identity: bytes, submit: Submit, effects: Effects, now: float) -> None:
        try:
            is_drained = self._num_drained is None
            admission.check_state(self.state, submit.accepted and not is_drained)
            if self.facts is None:
                raise Refusal("STARTING", "", "the engine is still loading the model; try again", 1.0)
            if self.ledger.registry.find(identity, submit.number) is not None:
                raise Refusal("INVALID_PARAMETER", "number", f"request {submit.number} of this frontend is live")
            admission.check_form(submit, self.config)
            submit = admission.fit_task(submit, self.facts)
            prompt = admission.read_prompt(submit)
            admission.check_model(prompt, submit.params, submit.adapter, self.facts, self.config)
            resumed = admission.read_resumed(submit, self.facts)
            if submit.timeout_seconds <= 0:
                self.ledger.expire(identity, submit, effects)
                return
            if not submit.accepted:  # after a scheduler's death all that lived come at once, and no queue held them
                admission.check_queue(self.ledger.waiting, len(prompt), self.config)
        except Refusal as refusal:
            self.ledger.refuse(identity, submit, refusal, effects)
            return
        request = self.ledger.enter(identity, submit, prompt, resumed, now)
        if request is not None and submit.resumed:
            self.ledger.end_complete(request, self.facts, self.group_epoch, effects, now)

    def _abort(self, identity: bytes, abort: Abort, effects: Effects, now: float) -> None:
        for number in abort.numbers:
            request = self.ledger.registry.find(identity, number)
            sequences = [] if request is None else request.sequences
            if abort.output_index >= 0:
                sequences = sequences[abort.output_index : abort.output_index + 1]
            live = [sequence for sequence in sequences if sequence.state != "finished"]
            self.counters.num_stale += not live
            for sequence in live:
                self.ledger.give_up(sequence, abort.reason, self.group_epoch, effects, now)

    def _abort_labels(self, identity: bytes, ask: AbortLabels, effects: Effects, now: float) -> None:
        counts: list[int] = []
        for label in ask.labels:
            requests = self.ledger.registry.of_label(label)
            counts.append(len(requests))
            self.ledger.end_all(requests, "abort", self.group_epoch, effects, now)
        effects.say(Reply(identity, AbortedLabels(ask.query, tuple(counts))))

    def _step_done(self, result: StepResult, effects: Effects, now: float) -> None:
        group_epoch = self.group_epoch
        plan = None if group_epoch is None else group_epoch.in_flight.awaited(result.epoch, result.step)
        if group_epoch is None or plan is None:
            self.counters.num_stale += 1
            return
        accepted = accept(group_epoch, plan, result)
        seconds = self.timeline.done(plan, result, now)
        self.counters.generated_tokens += sum(len(tokens) for tokens in accepted.tokens)
        for sequence, num_tokens in accepted.chunks:
            sequence.note_chunk(now, num_tokens, seconds)
        effects.tokens(group_epoch.running, self.ledger.registry.by_index, accepted)
        for sequence, logprobs in accepted.logprobs:
            effects.logprobs(sequence.request.frontend.identity, logprobs)
        for sequence, vector in accepted.vectors:
            effects.embedding(sequence.request.frontend.identity, Embedding(sequence.request.number, vector))
        for sequence in accepted.first:
            sequence.first_token_at = now
            sequence.note(now, "first_token", sequence.request.num_prompt)
        for sequence, reason, stop_token_id in accepted.ended:
            self.ledger.end(sequence, reason, group_epoch, effects, now, stop_token_id=stop_token_id)
        for sequence in accepted.bad:
            text = "the model computed a value that is no number; nothing of this output is reused"
            self.ledger.end(sequence, "error", group_epoch, effects, now, error="NUMERICAL", message=text, tainted=True)
        for sequence in accepted.stuck:
            text = "no token can follow what the grammar has taken so far; change it, or what else the request forbids"
            self.ledger.end(sequence, "error", group_epoch, effects, now, error="GRAMMAR_FAILED", message=text)
        group_epoch.in_flight.acknowledge(result.epoch, 0, result.step)
        group_epoch.on_acked()

    def _step_acked(self, ack: StepAck, now: float) -> None:
        group_epoch = self.group_epoch
        if group_epoch is None or ack.rank == 0 or not group_epoch.in_flight.acknowledge(ack.epoch, ack.rank, ack.step):
            self.counters.num_stale += 1
            return
        self.timeline.busy.worked(ack.rank, ack.device_seconds, now)
        group_epoch.on_acked()

    def _group_ready(self, event: GroupReady, effects: Effects, now: float) -> None:
        if event.epoch <= self.epoch or self.state == "failed":
            self.counters.num_stale += 1
            return
        if self.group_epoch is not None:
            self._lose_group(effects, now)
        self.epoch, self.facts = event.epoch, event.facts
        if not self.config.enable_chunked_prefill and event.facts.max_model_len > self.config.max_num_batched_tokens:
            detail = (
                f"enable_chunked_prefill is off and max_model_len {event.facts.max_model_len} is more than "
                f"max_num_batched_tokens {self.config.max_num_batched_tokens}; turn it on, or change one of the numbers"
            )
            self._fail(detail, effects, now)
            return
        self.group_epoch = Epoch(event.epoch, event.world_size, event.facts, self.config)
        self._policy = Policy(self.config, self.group_epoch, self.ledger.waiting, self.counters)
        for request in list(self.ledger.registry.requests()):
            try:
                admission.check_model(request.prompt, request.params, request.adapter, event.facts, self.config)
            except Refusal as refusal:
                text = f"after a restart of the workers: {refusal.message}"
                self.ledger.end_all([request], "error", None, effects, now, error=refusal.reason, message=text)
        self.timeline.begin_epoch(now)
        self._resumed_until = min(self._resumed_until, now + RESUME_SECONDS)
        self._become("ready", "", effects)

    def _lose_group(self, effects: Effects, now: float) -> None:
        """Requeue what ran as prompt + emitted tokens. What was in too many dying groups is taken for the cause."""
        if self.group_epoch is None:
            return
        running = self.group_epoch.running
        self.group_epoch, self._policy = None, None
        for sequence in sorted(running.live(), key=lambda sequence: sequence.order):
            running.leave(sequence, keep_tokens=True)
            self.ledger.requeue(sequence, self.config.max_restarts_per_request, effects, now)

    def _fail(self, detail: str, effects: Effects, now: float) -> None:
        self.ledger.end_all(
            self.ledger.registry.requests(), "error", None, effects, now, error="FAILED", message=detail
        )
        self._resumed_until = now
        self._become("failed", detail, effects)

    def _become(self, state: EngineState, detail: str, effects: Effects) -> None:
        """A drain outlasts the death of a group, and failure everything; of a new epoch the peers hear all the same."""
        if self.state == "failed":
            return
        if self.state != "draining" or state == "failed":
            self.state = state
        effects.say(ChangeState(self.state, detail))

    def _look_at_clock(self, effects: Effects, now: float) -> None:
        ledger = self.ledger
        expired = ledger.deadlines.expired(now)
        if expired:
            ledger.end_all(expired, "deadline", self.group_epoch, effects, now)
        if self._num_drained is None:
            return
        is_late = self._drain_deadline is not None and now >= self._drain_deadline
        if is_late:
            text = "the engine shut down before this output was complete"
            self._num_drained += ledger.end_all(
                ledger.registry.requests(), "error", self.group_epoch, effects, now, error="DRAINING", message=text
            )
        if not ledger.num_live and (is_late or now >= self._resumed_until):
            effects.say(ReportDrained(self._num_drained))
            self._num_drained = self._drain_deadline = None
