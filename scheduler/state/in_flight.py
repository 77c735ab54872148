"""Plans in flight: their numbers, the hash chain, what each computes, and which ranks have acknowledged them."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from quire.proto.messages.media import Bind, Encode
from quire.proto.messages.plans import GENESIS, Admit, GroupFacts, StepPlan, plan_hash
from quire.proto.transport.wire import Frames, encode, ints
from quire.scheduler.state.encoder_memory import EncoderEntry
from quire.scheduler.state.running import Int64, Mask


@dataclass(slots=True)
class PlannedStep:
    """The rows and table changes of one step. Columns have one entry per row.

    `num_tokens` and `ends` count every draft as accepted, until the results say otherwise.
    """

    slots: Int64
    generations: Int64
    """Generation of each row's slot: an output that entered the slot later has another."""
    num_tokens: Int64
    ends: Int64
    """Tokens of the sequence whose KV is written after the row."""
    samples: Mask
    num_draft: Int64 | None = None
    """Draft tokens of each row; None: no row has any."""
    admits: list[Admit] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    appends: list[list[int]] = field(default_factory=list)
    """By KV group, flat triples (slot, index in table, block)."""
    copies: list[int] = field(default_factory=list)
    """Flat pairs (from block, to block)."""
    encodes: list[Encode] = field(default_factory=list)
    encoded: list[EncoderEntry] = field(default_factory=list)
    """The entry of each of `encodes`."""
    binds: list[Bind] = field(default_factory=list)
    step: int = 0
    """Number of the plan in its epoch; 0 before it is sent."""
    num_decodes: int = 0
    """Rows of outputs that were already running, one token and its drafts; those after them are chunks of prompts."""
    num_draft_tokens: int = 0
    num_prefill_tokens: int = 0
    num_preempted: int = 0
    """Outputs that lost their slot since the plan before."""
    sent_at: float = 0.0
    schedule_seconds: float = 0.0
    send_seconds: float = 0.0
    idle_from: float = -1.0
    """Time since which outputs lived and nothing was in flight; -1: something was."""


class PlansInFlight:
    """The plans of one epoch that some rank has not acknowledged, at most `group.max_in_flight`.

    The group's reporter acknowledges with its result.
    """

    def __init__(self, epoch: int, group: GroupFacts) -> None:
        self.epoch = epoch
        self.group = group
        self.step = 0
        """Number of the newest plan sent."""
        self.plans: deque[PlannedStep] = deque()
        """Unacknowledged plans, oldest first."""
        self._acks = [0] * group.world_size
        self._previous = GENESIS

    @property
    def acked(self) -> int:
        """Number of the newest plan that every rank has acknowledged."""
        return min(self._acks)

    @property
    def oldest(self) -> tuple[int, int] | None:
        """Epoch and number of the oldest plan that some rank has not acknowledged."""
        return (self.epoch, self.plans[0].step) if self.plans else None

    @property
    def is_idle(self) -> bool:
        """Every plan sent has its result."""
        return self._acks[self.group.reporter] == self.step

    @property
    def has_room(self) -> bool:
        return len(self.plans) < self.group.max_in_flight

    def send(self, plan: PlannedStep) -> Frames:
        """Number the plan, chain it and keep it. Returns its encoding."""
        self.step += 1
        plan.step = self.step
        message = StepPlan(
            epoch=self.epoch,
            step=self.step,
            previous=self._previous,
            slots=plan.slots.astype("<i4").tobytes(),
            num_tokens=plan.num_tokens.astype("<i4").tobytes(),
            samples=plan.samples.astype(np.uint8).tobytes(),
            num_draft=b"" if plan.num_draft is None else plan.num_draft.astype("<i4").tobytes(),
            admits=tuple(plan.admits),
            releases=ints(plan.releases),
            appends=tuple(map(ints, plan.appends)) if any(plan.appends) else (),
            copies=ints(plan.copies),
            encodes=tuple(plan.encodes),
            binds=tuple(plan.binds),
        )
        frames = encode(message)
        self._previous = plan_hash(*frames)
        self.plans.append(plan)
        return frames

    def awaited(self, epoch: int, step: int) -> PlannedStep | None:
        """The plan with this number, if its result is the one due next."""
        if epoch != self.epoch or step != self._acks[self.group.reporter] + 1 or step > self.step:
            return None
        return self.plans[step - self.plans[0].step]

    def correct(self, step: int, refused: Int64) -> None:
        """Drafts of this plan were refused, by slot: it wrote fewer tokens, and the plans after it begin earlier."""
        for plan in self.plans:
            if plan.step == step:
                plan.num_tokens -= refused[plan.slots]
            if plan.step >= step:
                plan.ends -= refused[plan.slots]

    def take_result(self, step: int) -> None:
        """The reporter is done with this plan, which was `awaited`."""
        self._acks[self.group.reporter] = step

    def take_ack(self, epoch: int, rank: int, step: int) -> bool:
        """Another rank is done with this plan and all before it. False when the message is stale or makes no sense."""
        if epoch != self.epoch or not 0 <= rank < len(self._acks) or rank == self.group.reporter:
            return False
        if not self._acks[rank] < step <= self.step:
            return False
        self._acks[rank] = step
        return True

    def take_acked(self) -> list[PlannedStep]:
        """Take out the plans every rank has acknowledged."""
        acked = self.acked
        done: list[PlannedStep] = []
        while self.plans and self.plans[0].step <= acked:
            done.append(self.plans.popleft())
        return done
