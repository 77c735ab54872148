"""The engine's state, and the worker groups that come and go under it."""

from quire.proto.messages.message import EngineState
from quire.proto.messages.requests import ModelFacts
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import admission
from quire.scheduler.core.admission import Refusal
from quire.scheduler.core.drain import DrainProgress
from quire.scheduler.core.effects import Effects
from quire.scheduler.core.live_requests import LiveRequests
from quire.scheduler.core.media.admission import check_media
from quire.scheduler.core.policy import Policy
from quire.scheduler.core.step_log import StepLog
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.events import ChangeState, GroupReady


class Lifecycle:
    """State of the engine, and slots, memory, plans and policy of the living worker group."""

    def __init__(
        self,
        config: SchedulerConfig,
        live_requests: LiveRequests,
        drain: DrainProgress,
        step_log: StepLog,
        counters: Counters,
    ) -> None:
        self._config = config
        self._live_requests = live_requests
        self._drain = drain
        self._step_log = step_log
        self._counters = counters
        self.state: EngineState = "starting"
        self.epoch = 0
        """Epoch of the newest ready worker group; 0 before the first."""
        self.facts: ModelFacts | None = None
        """Facts of the newest ready worker group; None before the first."""
        self.group_epoch: Epoch | None = None
        """Slots, memory and plans of the living worker group; None while no group lives."""
        self.policy: Policy | None = None
        """Policy of the living worker group; None while no group lives."""

    def on_ready(self, event: GroupReady, effects: Effects, now: float) -> None:
        """A new group takes the place of the one before, dead or not."""
        if event.epoch <= self.epoch or self.state == "failed":
            self._counters.num_stale += 1
            return
        if self.group_epoch is not None:
            self._lose_group(effects, now)
        self.epoch, self.facts = event.epoch, event.facts
        config, facts = self._config, event.facts
        replays_whole = facts.whole_prompts and not facts.makes_vectors
        is_whole = replays_whole or not config.enable_chunked_prefill
        if is_whole and facts.max_model_len > config.max_num_batched_tokens:
            why = "the model reads prompts whole" if replays_whole else "enable_chunked_prefill is off"
            remedy = "" if replays_whole else "turn it on, or "
            detail = (
                f"{why} and max_model_len {facts.max_model_len} is more than "
                f"max_num_batched_tokens {config.max_num_batched_tokens}; {remedy}change one of the numbers"
            )
            self._fail(detail, effects, now)
            return
        self.group_epoch = Epoch(event.epoch, event.group, facts, config)
        self.policy = Policy(config, self.group_epoch, self._live_requests.waiting, self._counters)
        self._end_misfits(facts, effects, now)
        self._step_log.begin_epoch(now)
        self._drain.on_group_ready(now)
        self.change_state("ready", "", effects)

    def on_gone(self, epoch: int, reason: str, effects: Effects, now: float) -> None:
        """The group of this epoch is dead. Nothing happens when another one lives, or none."""
        if self.group_epoch is None or epoch != self.group_epoch.epoch:
            self._counters.num_stale += 1
            return
        self._lose_group(effects, now)
        self.change_state("recovering", reason, effects)

    def on_gave_up(self, reason: str, effects: Effects, now: float) -> None:
        """No group will come again."""
        self._lose_group(effects, now)
        self._fail(reason, effects, now)

    def change_state(self, state: EngineState, detail: str, effects: Effects) -> None:
        """Announce the state. A drain outlasts the death of a group, and failure outlasts everything; a new epoch is
        announced all the same.
        """
        if self.state == "failed":
            return
        if self.state != "draining" or state == "failed":
            self.state = state
        effects.emit(ChangeState(self.state, detail))

    def _end_misfits(self, facts: ModelFacts, effects: Effects, now: float) -> None:
        """End the live requests that the new group cannot run."""
        for request in list(self._live_requests.registry.requests()):
            try:
                admission.check_model(request.prompt, request.params, request.adapter, facts, self._config)
                check_media(request.media, request.num_prompt, facts, self._config)
            except Refusal as refusal:
                text = f"after a restart of the workers: {refusal.message}"
                self._live_requests.end_all([request], "error", None, effects, now, error=refusal.reason, message=text)

    def _lose_group(self, effects: Effects, now: float) -> None:
        """Requeue what ran, as prompt and emitted tokens. What ran in too many dying groups ends as their cause."""
        if self.group_epoch is None:
            return
        running = self.group_epoch.running
        self.group_epoch, self.policy = None, None
        for sequence in sorted(running.live(), key=lambda sequence: sequence.order):
            running.leave(sequence, keep_tokens=True)
            self._live_requests.requeue(sequence, self._config.max_restarts_per_request, effects, now)

    def _fail(self, detail: str, effects: Effects, now: float) -> None:
        """End everything; the engine stays failed."""
        live_requests = self._live_requests
        live_requests.end_all(
            live_requests.registry.requests(), "error", None, effects, now, error="FAILED", message=detail
        )
        self._drain.on_failed(now)
        self.change_state("failed", detail, effects)
