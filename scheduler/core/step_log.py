"""The log of steps, their times and contents: the newest one by one, all of them in sums."""

from collections import deque

from quire.proto.messages.introspection import StepRecord
from quire.proto.messages.plans import StepResult
from quire.proto.metrics.histogram import Histogram
from quire.scheduler.buckets import BATCH, STEP_SECONDS
from quire.scheduler.core.device_busy import DeviceBusy
from quire.scheduler.state.in_flight import PlannedStep

MAX_RECORDS = 1024
"""Newest steps that are kept one by one."""
PREFILL_RATE_MEMORY = 0.95
"""Weight of the old sums in the prefill rate, per step with prefill."""


class StepLog:
    """Records, sums and histograms of the steps. A step adds a record and four observations at most."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.schedule_seconds = self.send_seconds = self.device_seconds = self.host_seconds = self.idle_seconds = 0.0
        self.device_busy = DeviceBusy()
        self.step_seconds = Histogram(STEP_SECONDS)
        self.step_decodes = Histogram(BATCH)
        self.step_tokens = Histogram(BATCH)
        self.encode_seconds = Histogram(STEP_SECONDS)
        self._records: deque[StepRecord] = deque(maxlen=MAX_RECORDS)
        self._result_at = 0.0
        self._preemptions_logged = 0
        self._prefill_tokens = self._prefill_seconds = 0.0

    @property
    def prefill_rate(self) -> float:
        """Tokens per second of the latest steps with prefill; 0 when there was none."""
        return self._prefill_tokens / self._prefill_seconds if self._prefill_seconds else 0.0

    def begin_epoch(self, now: float) -> None:
        """Begin again: a new group counts its steps from 1."""
        self._records.clear()
        self._result_at = now

    def on_planned(
        self, plan: PlannedStep, now: float, live_since: float, was_idle: bool, num_preemptions: int
    ) -> None:
        """A plan is about to be sent. `num_preemptions` counts since the core's start."""
        plan.sent_at = now
        plan.num_preempted = num_preemptions - self._preemptions_logged
        self._preemptions_logged = num_preemptions
        if was_idle:
            plan.idle_from = max(self._result_at, live_since)

    def on_result(self, plan: PlannedStep, result: StepResult, now: float) -> float:
        """A plan's result is here. Returns the seconds since its turn on the device began."""
        seconds = max(0.0, now - max(plan.sent_at, self._result_at))
        idle = max(0.0, plan.sent_at - plan.idle_from) if plan.idle_from >= 0 else 0.0
        self._result_at = now
        self.num_steps += 1
        self.schedule_seconds += plan.schedule_seconds
        self.send_seconds += plan.send_seconds
        self.device_seconds += result.device_seconds
        self.host_seconds += result.host_seconds
        self.idle_seconds += idle
        self.step_seconds.add(seconds)
        self.step_decodes.add(plan.num_decodes)
        self.step_tokens.add(plan.num_decodes + plan.num_draft_tokens + plan.num_prefill_tokens)
        if plan.encodes:
            self.encode_seconds.add(result.encode_seconds)
        if plan.num_prefill_tokens:
            self._prefill_tokens = PREFILL_RATE_MEMORY * self._prefill_tokens + plan.num_prefill_tokens
            self._prefill_seconds = PREFILL_RATE_MEMORY * self._prefill_seconds + seconds
        self._records.append(
            StepRecord(
                plan.step,
                now,
                plan.num_decodes,
                len(plan.slots) - plan.num_decodes,
                plan.num_prefill_tokens,
                len(plan.admits),
                plan.num_preempted,
                plan.schedule_seconds,
                plan.send_seconds,
                result.device_seconds,
                result.host_seconds,
                idle,
            )
        )
        return seconds

    def records(self, after_step: int) -> tuple[StepRecord, ...]:
        """Kept records of this epoch that are newer than `after_step`, oldest first."""
        return tuple(record for record in self._records if record.step > after_step)
