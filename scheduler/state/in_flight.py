"""Plans in flight: their numbers, the hash chain, what each will compute, and who has acknowledged them."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from quire.proto.messages.plans import GENESIS, MAX_PLANS_IN_FLIGHT, Admit, StepPlan, plan_hash
from quire.proto.transport.wire import encode, ints
from quire.scheduler.state.running import Int64, Mask


@dataclass(slots=True)
class Draft:
    """A plan before it has a number. Columns are one per row; `generations` tell whose row it is."""

    slots: Int64
    generations: Int64
    num_tokens: Int64
    ends: Int64
    """Tokens of the sequence whose KV is written after the row."""
    samples: Mask
    num_draft: Int64 | None = None
    admits: list[Admit] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    appends: list[int] = field(default_factory=list)
    """Flat triples (slot, index in table, block)."""
    copies: list[int] = field(default_factory=list)
    """Flat pairs (from block, to block)."""
    step: int = 0
    num_decodes: int = 0
    """One-token rows of outputs that were already running; the rows after them are chunks of prompts."""
    num_prefill_tokens: int = 0
    num_preempted: int = 0
    """Outputs that lost their slot since the plan before."""
    sent_at: float = 0.0
    schedule_seconds: float = 0.0
    send_seconds: float = 0.0
    idle_from: float = -1.0
    """Since when outputs lived but nothing was in flight; -1: something was."""


class Pipeline:
    """At most `MAX_PLANS_IN_FLIGHT` plans are unacknowledged. Rank 0 acknowledges with its result."""

    def __init__(self, epoch: int, world_size: int) -> None:
        self.epoch = epoch
        self.step = 0
        """The newest plan sent."""
        self.flight: deque[Draft] = deque()
        """Plans some rank has not acknowledged, oldest first."""
        self._acks = [0] * world_size
        self._previous = GENESIS

    @property
    def acked(self) -> int:
        """The newest plan every rank has acknowledged."""
        return min(self._acks)

    @property
    def oldest(self) -> tuple[int, int] | None:
        """Epoch and step of the oldest plan some rank has not acknowledged."""
        return (self.epoch, self.flight[0].step) if self.flight else None

    @property
    def is_idle(self) -> bool:
        """Every plan sent has its result."""
        return self._acks[0] == self.step

    @property
    def has_room(self) -> bool:
        return len(self.flight) < MAX_PLANS_IN_FLIGHT

    def send(self, draft: Draft) -> bytes:
        """Number the plan, chain it, remember it. Returns its encoding."""
        self.step += 1
        draft.step = self.step
        plan = StepPlan(
            epoch=self.epoch,
            step=self.step,
            previous=self._previous,
            slots=draft.slots.astype("<i4").tobytes(),
            num_tokens=draft.num_tokens.astype("<i4").tobytes(),
            samples=draft.samples.astype(np.uint8).tobytes(),
            num_draft=b"" if draft.num_draft is None else draft.num_draft.astype("<i4").tobytes(),
            admits=tuple(draft.admits),
            releases=ints(draft.releases),
            appends=ints(draft.appends),
            copies=ints(draft.copies),
        )
        frame = encode(plan)
        self._previous = plan_hash(frame)
        self.flight.append(draft)
        return frame

    def awaited(self, epoch: int, step: int) -> Draft | None:
        """The plan whose result comes next, if this is it."""
        if epoch != self.epoch or step != self._acks[0] + 1 or step > self.step:
            return None
        return self.flight[step - self.flight[0].step]

    def acknowledge(self, epoch: int, rank: int, step: int) -> bool:
        """A rank is done with this plan and all before. False when the message is stale or makes no sense."""
        if epoch != self.epoch or not 0 <= rank < len(self._acks) or not self._acks[rank] < step <= self.step:
            return False
        self._acks[rank] = step
        return True

    def landed(self) -> list[Draft]:
        """Take out the plans every rank has acknowledged."""
        acked = self.acked
        done: list[Draft] = []
        while self.flight and self.flight[0].step <= acked:
            done.append(self.flight.popleft())
        return done
