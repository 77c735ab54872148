"""The scheduling policy: decodes first, then prompts, as `prefill` divides what is left of the token budget.

A running output that needs a block when there is none takes it from the last in order.
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
        return self._close(plan, singles, chunks)

    def _extend(self, slots: Int64, plan: PlannedStep) -> tuple[Int64, bool]:
        """Give a block to each row whose next token begins one. Returns the slots that can run; True: not all can."""
        running, memory = self._running, self._memory
        short = slots[running.num_blocks[slots] * memory.block_size <= running.num_scheduled[slots]]
        if not len(short):
            return slots, False
        needy = [running.at(slot) for slot in short.tolist()]
        if memory.available >= len(needy):
            for sequence, block in zip(needy, memory.take(len(needy)), strict=True):
                plan.appends += (sequence.slot, len(sequence.blocks), block)
                sequence.blocks.append(block)
            running.num_blocks[short] += 1
            return slots, False
        num_promised = 0
        for sequence in sorted(needy, key=_order):
            if self._find_block(sequence, num_promised):
                (block,) = memory.take(1)
                plan.appends += (sequence.slot, len(sequence.blocks), block)
                sequence.blocks.append(block)
                running.num_blocks[sequence.slot] += 1
            elif sequence.state == "running":
                num_promised += 1
        slots = slots[running.active[slots]]
        can_run = running.num_blocks[slots] * memory.block_size > running.num_scheduled[slots]
        return slots[can_run], True

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

    def _close(self, plan: PlannedStep, singles: Int64, chunks: list[tuple[int, int]]) -> PlannedStep | None:
        """Fill the row columns, one-token rows first, and count the tokens of the rows as scheduled."""
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
