"""The scheduling policy: decodes first, then prompts, as `prefill` divides what is left of the token budget.

A running output that needs a block when there is none takes it from the last in order. Drafts get what nobody else
has a use for: tokens that prompts leave, and blocks beyond the next one of every output.
"""

import numpy as np

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.gate import Gate
from quire.scheduler.core.prefill import Prefill
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.in_flight import PlannedStep
from quire.scheduler.state.running import Int64
from quire.scheduler.state.sequence import Sequence
from quire.scheduler.state.waiting import Waiting

MAX_HOLDERS = 2
"""Holders of blocks that the log of a preempted output names."""


class Policy:
    """Plans the steps of one epoch. It counts tokens and never looks at their values."""

    def __init__(self, config: SchedulerConfig, group_epoch: Epoch, waiting: Waiting, counters: Counters) -> None:
        self._config = config
        self._group_epoch = group_epoch
        self._running = group_epoch.running
        self._memory = group_epoch.memory
        self._waiting = waiting
        self._counters = counters
        self._gate = Gate(config, group_epoch, waiting, counters)
        self._prefill = Prefill(config, group_epoch, waiting, self._gate)
        self._now = 0.0

    def plan_step(self, now: float) -> PlannedStep | None:
        """The next plan, or None when no row can run. The blocks that it needs are reserved."""
        running = self._running
        self._now = now
        plan = PlannedStep(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS.astype(bool))
        slots = np.flatnonzero(running.active & (running.num_tokens < running.limit))
        todo = running.num_tokens[slots] - running.num_scheduled[slots]
        is_chunk = todo > 1
        singles = slots[~is_chunk] if is_chunk.any() else slots
        singles, stalled = self._extend(singles, plan)
        budget = self._config.max_num_batched_tokens - len(singles)
        self._gate.open(plan, budget, stalled, now)
        chunks = self._prefill.fill(
            [running.at(slot) for slot in slots[is_chunk].tolist() if running.active[slot]], budget
        )
        self._gate.close()
        if running.num_draft is not None:
            singles = self._add_drafts(singles, budget - sum(count for _, count in chunks), plan)
        return self._close(plan, singles, chunks)

    def _extend(self, slots: Int64, plan: PlannedStep) -> tuple[Int64, bool]:
        """Give a block to each row whose next token begins one. Returns the slots that can run; True: not all can."""
        running, memory = self._running, self._memory
        short = slots[running.num_blocks[slots] * memory.block_size <= running.num_scheduled[slots]]
        if not len(short):
            return slots, False
        needy = [running.at(slot) for slot in short.tolist()]
        if memory.available >= len(needy):
            self._append(needy, plan)
            return slots, False
        num_promised = 0
        for sequence in sorted(needy, key=_order):
            if self._find_block(sequence, num_promised):
                self._append([sequence], plan)
            elif sequence.state == "running":
                num_promised += 1
        slots = slots[running.active[slots]]
        can_run = running.num_blocks[slots] * memory.block_size > running.num_scheduled[slots]
        return slots[can_run], True

    def _append(self, sequences: list[Sequence], plan: PlannedStep) -> None:
        """Give each of these outputs one more block; so many must be available."""
        for sequence, block in zip(sequences, self._memory.take(len(sequences)), strict=True):
            plan.appends += (sequence.slot, len(sequence.blocks), block)
            sequence.blocks.append(block)
            self._running.num_blocks[sequence.slot] = len(sequence.blocks)

    def _find_block(self, sequence: Sequence, num_promised: int) -> bool:
        """Preempt until a block is available (True), a falling fence will give one, or the output itself is out."""
        memory = self._memory
        while sequence.state == "running":
            if memory.available:
                return True
            if len(memory.pool.fenced) > num_promised:
                return False
            self._preempt(max(self._running.live(), key=_order), sequence)
        return False

    def _preempt(self, sequence: Sequence, by: Sequence) -> None:
        """Move the output from its slot back into the queue; its tokens in flight are dropped and sampled again."""
        detail = f"its {len(sequence.blocks)} blocks were taken for {_name(by)}, which needed one and is before it"
        if by is sequence:
            others = sorted((other for other in self._running.live() if other is not sequence), key=_order)
            holders = ", ".join(f"{_name(other)} with {len(other.blocks)}" for other in others[:MAX_HOLDERS])
            detail = f"it needed a block, and all are held by outputs before it: {holders}"
        self._group_epoch.leave(sequence, keep_tokens=True)
        sequence.note(self._now, "preempted", sequence.num_known, detail)
        sequence.move("waiting")
        sequence.num_preemptions += 1
        self._counters.num_preemptions += 1
        self._waiting.push(sequence)

    def _add_drafts(self, slots: Int64, budget: int, plan: PlannedStep) -> Int64:
        """Add drafts to these decodes, `budget` tokens at most. Returns the slots, those that carry drafts behind."""
        running, memory = self._running, self._memory
        assert running.num_draft is not None
        counts = np.minimum(running.num_draft[slots], running.limit[slots] - running.num_tokens[slots] - 1)
        counts = np.clip(budget - np.cumsum(counts) + counts, 0, counts)
        ends = running.num_scheduled[slots] + 1 + counts
        for row in np.flatnonzero(ends > running.num_blocks[slots] * memory.block_size).tolist():
            sequence = running.at(int(slots[row]))
            held = len(sequence.blocks)
            wanted = memory.blocks_for(int(ends[row])) - held
            taken = max(0, min(wanted, memory.available - running.num_active))
            self._append([sequence] * taken, plan)
            counts[row] -= max(0, int(ends[row]) - (held + taken) * memory.block_size)
        if not counts.any():
            return slots
        order = np.argsort(counts > 0, kind="stable")
        plan.num_draft = counts[order]
        plan.num_draft_tokens = int(counts.sum())
        return slots[order]

    def _close(self, plan: PlannedStep, singles: Int64, chunks: list[tuple[int, int]]) -> PlannedStep | None:
        """Fill the row columns, decodes first, and count the tokens of the rows as scheduled."""
        running = self._running
        if chunks:
            chunks.sort(key=_is_long)
            columns = np.array(chunks, np.int64)
            plan.slots = np.concatenate((singles, columns[:, 0]))
            plan.num_tokens = np.concatenate((np.ones(len(singles), np.int64), columns[:, 1]))
        else:
            plan.slots = singles
            plan.num_tokens = np.ones(len(singles), np.int64)
        if not len(plan.slots):
            return None
        plan.generations = running.generation[plan.slots]
        plan.ends = running.num_scheduled[plan.slots] + plan.num_tokens
        plan.samples = plan.ends == running.num_tokens[plan.slots]
        if plan.num_draft is not None:
            plan.num_draft = np.concatenate((plan.num_draft, np.zeros(len(chunks), np.int64)))
            plan.num_tokens += plan.num_draft
            plan.ends += plan.num_draft
            running.num_tokens[plan.slots] += plan.num_draft
        plan.num_decodes = len(singles)
        plan.num_prefill_tokens = sum(count for _, count in chunks)
        running.num_scheduled[plan.slots] = plan.ends
        running.num_tokens[plan.slots] += plan.samples
        plan.releases, running.released = running.released, []
        return plan


_NO_ROWS: Int64 = np.zeros(0, np.int64)


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def _name(sequence: Sequence) -> str:
    return f"request {sequence.request.label!r} output {sequence.output_index}"


def _is_long(row: tuple[int, int]) -> bool:
    return row[1] > 1
