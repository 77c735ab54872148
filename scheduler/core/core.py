"""The scheduler as a pure state machine: events in, instructions out. No socket, clock, thread or randomness.

Equal events at equal times give byte-equal instructions.
"""

from typing import assert_never

from quire.proto.messages.heads import EmbeddingVector
from quire.proto.messages.message import EngineState
from quire.proto.messages.plans import StepAck, StepResult
from quire.proto.messages.requests import Abort, AbortedLabels, AbortLabels, ModelFacts, Submit
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import admission
from quire.scheduler.core.accept import accept
from quire.scheduler.core.admission import Refusal
from quire.scheduler.core.drain import DrainProgress
from quire.scheduler.core.effects import Effects
from quire.scheduler.core.lifecycle import Lifecycle
from quire.scheduler.core.live_requests import LiveRequests
from quire.scheduler.core.media.admission import check_media
from quire.scheduler.core.step_log import StepLog
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.events import (
    Aborted,
    DrainRequested,
    Event,
    FrontendLost,
    GroupGaveUp,
    GroupGone,
    GroupReady,
    Instruction,
    LabelsAborted,
    Reply,
    SendPlan,
    StepAcked,
    StepDone,
    Submitted,
    Tick,
)


class Core:
    """One engine. `now` is in seconds of a monotonic clock and never goes back."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.step_log = StepLog()
        self.live_requests = LiveRequests(self.counters)
        self._drain = DrainProgress(self.live_requests)
        self._lifecycle = Lifecycle(config, self.live_requests, self._drain, self.step_log, self.counters)

    @property
    def state(self) -> EngineState:
        return self._lifecycle.state

    @property
    def epoch(self) -> int:
        """Epoch of the newest ready worker group; 0 before the first."""
        return self._lifecycle.epoch

    @property
    def facts(self) -> ModelFacts | None:
        """Facts of the newest ready worker group; None before the first."""
        return self._lifecycle.facts

    @property
    def group_epoch(self) -> Epoch | None:
        """Slots, memory and plans of the living worker group; None while no group lives."""
        return self._lifecycle.group_epoch

    @property
    def step(self) -> int:
        """Number of the living group's newest plan; 0 without a group."""
        return 0 if self.group_epoch is None else self.group_epoch.in_flight.step

    @property
    def oldest_plan(self) -> tuple[int, int] | None:
        """Epoch and step of the oldest plan that some rank has not acknowledged."""
        return None if self.group_epoch is None else self.group_epoch.in_flight.oldest

    @property
    def num_live(self) -> int:
        """Outputs without a terminal event."""
        return self.live_requests.num_live

    @property
    def is_idle(self) -> bool:
        """Nothing lives that a deadline may end, and no drain waits for its report."""
        return not self.num_live and not self._drain.is_under_way

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event. Raises `ResultError` when a result does not fit its plan: the group must be replaced."""
        effects = Effects()
        self._list_planned()
        match event:
            case StepDone(result):
                self._step_done(result, effects, now)
            case StepAcked(ack):
                self._step_acked(ack, now)
            case Submitted(frontend, submit):
                self._submit(frontend, submit, effects, now)
            case Aborted(frontend, abort):
                self._abort(frontend, abort, effects, now)
            case LabelsAborted(frontend, message):
                self._abort_labels(frontend, message, effects, now)
            case FrontendLost(frontend):
                requests = self.live_requests.registry.of_frontend(frontend)
                self.live_requests.end_all(requests, "abort", self.group_epoch, None, now)
            case GroupReady():
                self._lifecycle.on_ready(event, effects, now)
            case GroupGone(epoch, reason):
                self._lifecycle.on_gone(epoch, reason, effects, now)
            case GroupGaveUp(reason):
                self._lifecycle.on_gave_up(reason, effects, now)
            case DrainRequested(timeout_seconds):
                self._drain.begin(timeout_seconds, now)
                self._lifecycle.change_state("draining", "", effects)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._on_tick(effects, now)
        return effects.instructions(self.epoch)

    def refuse(self, event: Submitted, reason: str, message: str) -> list[Instruction]:
        """End a request that never entered, for a reason that the core cannot see.

        Raises `InvariantError` when it did enter.
        """
        if self.live_requests.registry.find(event.frontend, event.submit.number) is not None:
            raise InvariantError("I6", f"request {event.submit.number} is live and cannot be refused")
        effects = Effects()
        self.live_requests.refuse(event.frontend, event.submit, Refusal(reason, "", message), effects)
        return effects.instructions(self.epoch)

    def plan(self, now: float) -> list[Instruction]:
        """The next plan, when the group takes one more and some row can run."""
        group_epoch, policy = self.group_epoch, self._lifecycle.policy
        if group_epoch is None or policy is None or not group_epoch.in_flight.has_room:
            return []
        in_flight = group_epoch.in_flight
        self._list_planned()
        plan = policy.plan_step(now)
        if plan is None:
            return []
        self.step_log.on_planned(
            plan, now, self.live_requests.live_since, in_flight.is_idle, self.counters.num_preemptions
        )
        frames = in_flight.send(plan)
        return [SendPlan(group_epoch.epoch, plan.step, frames)]

    def on_sent(self, at: float, schedule_seconds: float, send_seconds: float) -> None:
        """The newest plan took so long to make, until `at`, and then to hand to the workers.

        For metrics only; and what the plan writes is listed now, when it is no longer waited for.
        """
        self._list_planned()
        if self.group_epoch is not None and self.group_epoch.in_flight.plans:
            plan = self.group_epoch.in_flight.plans[-1]
            plan.sent_at, plan.schedule_seconds, plan.send_seconds = at, schedule_seconds, send_seconds

    def _list_planned(self) -> None:
        if self.group_epoch is not None:
            self.group_epoch.memory.list_planned()

    def _submit(self, identity: bytes, submit: Submit, effects: Effects, now: float) -> None:
        try:
            admission.check_state(self.state, submit.accepted)
            if self.facts is None:
                raise Refusal("STARTING", "", "the engine is still loading the model; try again", 1.0)
            if self.live_requests.registry.find(identity, submit.number) is not None:
                raise Refusal("INVALID_PARAMETER", "number", f"request {submit.number} of this frontend is live")
            admission.check_form(submit, self.config)
            submit = admission.fit_task(submit, self.facts)
            prompt = admission.read_prompt(submit)
            admission.check_model(prompt, submit.params, submit.adapter, self.facts, self.config)
            check_media(submit.media, len(prompt), self.facts, self.config)
            resumed = admission.read_resumed(submit, self.facts)
            if submit.timeout_seconds <= 0:
                self.live_requests.expire(identity, submit, effects)
                return
            if not submit.accepted:  # after a scheduler's death all live requests come at once
                admission.check_queue(self.live_requests.waiting, len(prompt), self.config)
        except Refusal as refusal:
            self.live_requests.refuse(identity, submit, refusal, effects)
            return
        request = self.live_requests.enter(identity, submit, prompt, resumed, now)
        if request is not None and submit.resumed:
            self.live_requests.end_complete(request, self.facts, self.group_epoch, effects, now)

    def _abort(self, identity: bytes, abort: Abort, effects: Effects, now: float) -> None:
        for number in abort.numbers:
            request = self.live_requests.registry.find(identity, number)
            sequences = [] if request is None else request.sequences
            if abort.output_index >= 0:
                sequences = sequences[abort.output_index : abort.output_index + 1]
            live = [sequence for sequence in sequences if sequence.state != "finished"]
            self.counters.num_stale += not live
            for sequence in live:
                self.live_requests.give_up(sequence, abort.reason, self.group_epoch, effects, now)

    def _abort_labels(self, identity: bytes, message: AbortLabels, effects: Effects, now: float) -> None:
        counts: list[int] = []
        for label in message.labels:
            requests = self.live_requests.registry.of_label(label)
            counts.append(len(requests))
            self.live_requests.end_all(requests, "abort", self.group_epoch, effects, now)
        effects.emit(Reply(identity, AbortedLabels(message.query, tuple(counts))))

    def _step_done(self, result: StepResult, effects: Effects, now: float) -> None:
        group_epoch = self.group_epoch
        plan = None if group_epoch is None else group_epoch.in_flight.awaited(result.epoch, result.step)
        if group_epoch is None or plan is None:
            self.counters.num_stale += 1
            return
        accepted = accept(group_epoch, plan, result)
        self.step_log.device_busy.add(group_epoch.in_flight.group.reporter, result.device_seconds, now)
        seconds = self.step_log.on_result(plan, result, now)
        self.counters.generated_tokens += sum(len(tokens) for tokens in accepted.tokens)
        for sequence, num_tokens in accepted.chunks:
            sequence.note_chunk(now, num_tokens, seconds)
        effects.tokens(group_epoch.running, self.live_requests.registry.by_index, accepted)
        for sequence, logprobs in accepted.logprobs:
            effects.logprobs(sequence.request.frontend.identity, logprobs)
        for sequence, vector in accepted.vectors:
            effects.embedding(sequence.request.frontend.identity, EmbeddingVector(sequence.request.number, vector))
        for sequence in accepted.first:
            sequence.first_token_at = now
            sequence.note(now, "first_token", sequence.request.num_prompt)
        for sequence, reason, stop_token_id in accepted.ended:
            self.live_requests.end(sequence, reason, group_epoch, effects, now, stop_token_id=stop_token_id)
        for sequence in accepted.bad:
            text = "the model computed a value that is no number; nothing of this output is reused"
            self.live_requests.end(
                sequence, "error", group_epoch, effects, now, error="NUMERICAL", message=text, poisoned=True
            )
        for sequence in accepted.lost:
            text = "the file of one of its images was gone before it was read; send the request again"
            self.live_requests.end(
                sequence, "error", group_epoch, effects, now, error="MEDIA_LOST", message=text, poisoned=True
            )
        for sequence in accepted.misled:
            self.live_requests.send_back(sequence, group_epoch, now)
        for sequence in accepted.stuck:
            text = (
                "no token can follow what the grammar has taken so far, or telling which can kept others waiting too "
                "long; change it (rules that read a text in many ways take longest), or what else the request forbids"
            )
            self.live_requests.end(sequence, "error", group_epoch, effects, now, error="GRAMMAR_FAILED", message=text)
        group_epoch.on_encoded(plan, result.lost_encodes)
        group_epoch.in_flight.take_result(result.step)
        group_epoch.on_acked()

    def _step_acked(self, ack: StepAck, now: float) -> None:
        group_epoch = self.group_epoch
        if group_epoch is None or not group_epoch.in_flight.take_ack(ack.epoch, ack.rank, ack.step):
            self.counters.num_stale += 1
            return
        self.step_log.device_busy.add(ack.rank, ack.device_seconds, now)
        group_epoch.on_acked()

    def _on_tick(self, effects: Effects, now: float) -> None:
        """Time has passed, as with every event: end what is due."""
        expired = self.live_requests.deadlines.expired(now)
        if expired:
            self.live_requests.end_all(expired, "deadline", self.group_epoch, effects, now)
        self._drain.on_tick(self.group_epoch, effects, now)
