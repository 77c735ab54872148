"""The scheduling policy: decodes first, then prompts, as `prefill` divides what is left of the token budget.

A running output that needs a block when there is none takes it from the last in order. Drafts get what nobody else
has a use for: tokens that prompts leave, and blocks beyond the next one of every output and those of the first in line.
"""

import numpy as np

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.gate import Gate
from quire.scheduler.core.media.encoding import Encoding
from quire.scheduler.core.prefill import Prefill
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.in_flight import PlannedStep
from quire.scheduler.state.running import Int64, Mask
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
        self._encoding = Encoding(config, group_epoch, counters)
        self._gate = Gate(config, group_epoch, waiting, counters, self._encoding)
        self._prefill = Prefill(config, group_epoch, waiting, self._gate)
        self._now = 0.0

    def plan_step(self, now: float) -> PlannedStep | None:
        """The next plan, or None when no row can run. The blocks that it needs are reserved."""
        running = self._running
        self._now = now
        plan = PlannedStep(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_SAMPLES)
        plan.appends = [[] for _ in self._memory.block_sizes]
        if self._memory.windows:
            self._let_go()
        slots = (running.active & (running.num_tokens < running.limit)).nonzero()[0]
        todo = running.num_tokens[slots] - running.num_scheduled[slots]
        is_chunk = todo > 1
        if self._group_epoch.encoder_memory is not None:  # the last token may be of an item, which must be there
            is_chunk |= running.num_scheduled[slots] < running.span_end[slots]
        singles, chunks = slots, slots[is_chunk]
        if len(chunks):
            singles = slots[~is_chunk]
        if self._memory.windows:
            going, stalled = self._extend(slots, plan)
            singles, chunks = np.intersect1d(singles, going), np.intersect1d(chunks, going)
        else:
            singles, stalled = self._extend(singles, plan)
        budget = self._config.max_num_batched_tokens - len(singles)
        self._encoding.open(plan, now)
        self._gate.open(plan, budget, stalled, now)
        rows = self._prefill.fill([running.at(slot) for slot in chunks.tolist() if running.active[slot]], budget)
        self._gate.close()
        self._encoding.close()
        if running.num_draft is not None:
            singles = self._add_drafts(singles, budget - sum(count for _, count in rows), plan)
        return self._close(plan, singles, rows)

    def _let_go(self) -> None:
        """Give back the blocks that windows have passed: what every row from now on begins behind."""
        running, memory = self._running, self._memory
        # with drafts in flight it is not known yet how much of what was scheduled stays
        begun = running.num_scheduled if running.num_draft is None else running.num_computed
        passed: list[tuple[Sequence, int, int]] = []
        for group, window in memory.windows.items():
            behind = np.maximum(begun - window, 0) // memory.block_sizes[group]
            slots = np.flatnonzero(running.active & (behind > running.num_behind[group]))
            running.num_behind[group, slots] = behind[slots]
            counts = zip(slots.tolist(), behind[slots].tolist(), strict=True)
            passed += [(running.at(slot), group, count) for slot, count in counts]
        if passed:
            memory.let_go(passed, self._group_epoch.in_flight.step)

    def _extend(self, slots: Int64, plan: PlannedStep) -> tuple[Int64, bool]:
        """Give a block of each KV group to each row whose next token begins one there, and as many as it needs to one
        whose next tokens run together.

        Returns the slots that can run; True: not all can.
        """
        running, memory = self._running, self._memory
        last = self._last(slots)
        held_by_group = zip(running.num_blocks, memory.block_sizes, strict=True)
        short = [self._short(slots, last, held[slots], size) for held, size in held_by_group]
        num_needed = sum(map(len, short))
        if not num_needed:
            return slots, False
        if memory.available >= num_needed:
            for group, needy in enumerate(short):
                self._append(needy, group, plan)
            return slots, False
        wanting: dict[Sequence, list[int]] = {}
        for group, needy in enumerate(short):
            for slot in needy.tolist():
                wanting.setdefault(running.at(slot), []).append(group)
        num_promised = 0
        for sequence in sorted(wanting, key=_order):
            groups = wanting[sequence]
            if self._find_blocks(sequence, len(groups), num_promised):
                for group in groups:
                    self._append(np.array([sequence.slot]), group, plan)
            elif sequence.state == "running":
                num_promised += len(groups)
        going = running.active[slots]
        slots, last = slots[going], last[going]
        return slots[self._room(slots) > last], True

    def _last(self, slots: Int64) -> Int64:
        """The position of the last token that each of these slots runs next: of a span whose tokens run together, its
        last, where blocks are not all reserved yet.
        """
        running, encoding = self._running, self._encoding
        last: Int64 = running.num_scheduled[slots]
        if self._memory.windows and encoding.keeps_whole:
            for row in np.flatnonzero(last < running.span_end[slots]).tolist():
                last[row] += encoding.least(running.at(int(slots[row])), int(last[row])) - 1
        return last

    def _short(self, slots: Int64, last: Int64, held: Int64, size: int) -> Int64:
        """Those of these slots that hold too few blocks for the token at `last`, as often as each needs one more."""
        lacks = held * size <= last
        if not self._encoding.keeps_whole:  # one is enough
            return slots[lacks]
        return np.repeat(slots[lacks], last[lacks] // size + 1 - held[lacks])

    def _room(self, slots: Int64) -> Int64:
        """Tokens that the tables of these slots hold, those of every KV group."""
        held_by_group = zip(self._running.num_blocks, self._memory.block_sizes, strict=True)
        room: Int64 = np.minimum.reduce([held[slots] * size for held, size in held_by_group])
        return room

    def _append(self, slots: Int64, group: int, plan: PlannedStep) -> None:
        """Give each of these slots one more block of this KV group, or as often as it is named; so many must be
        available."""
        appends, at = plan.appends[group], self._running.at
        for slot, block in zip(slots.tolist(), self._memory.take(len(slots)), strict=True):
            table = at(slot).tables[group]
            appends += (slot, len(table), block)
            table.append(block)
        np.add.at(self._running.num_blocks[group], slots, 1)

    def _find_blocks(self, sequence: Sequence, count: int, num_promised: int) -> bool:
        """Preempt until so many blocks are available (True), falling fences will give them, or the output is out."""
        memory = self._memory
        while sequence.state == "running":
            if memory.available >= count:
                return True
            if memory.available + len(memory.pool.fenced) >= num_promised + count:
                return False
            self._preempt(max(self._running.live(), key=_order), sequence)
        return False

    def _preempt(self, sequence: Sequence, by: Sequence) -> None:
        """Move the output from its slot back into the queue; its tokens in flight are dropped and sampled again."""
        detail = f"its {sequence.blocks_in_words} were taken for {_name(by)}, which needed one and is before it"
        if by is sequence:
            others = sorted((other for other in self._running.live() if other is not sequence), key=_order)
            holders = ", ".join(f"{_name(other)} with {other.num_blocks}" for other in others[:MAX_HOLDERS])
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
        promised = self._gate.num_promised
        for row in np.flatnonzero(ends > self._room(slots)).tolist():
            sequence, end = running.at(int(slots[row])), int(ends[row])
            spare = max(0, memory.available - running.num_active - promised)
            while sum(wanted := memory.missing_by_group(sequence, end)) > spare:
                end -= 1
            for group, count in enumerate(wanted):
                for _ in range(count):
                    self._append(slots[row : row + 1], group, plan)
            counts[row] -= int(ends[row]) - end
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
        num_tokens = running.num_tokens[plan.slots]
        plan.samples = plan.ends == num_tokens
        if plan.num_draft is not None:
            plan.num_draft = np.concatenate((plan.num_draft, np.zeros(len(chunks), np.int64)))
            plan.num_tokens += plan.num_draft
            plan.ends += plan.num_draft
            num_tokens += plan.num_draft
        plan.num_decodes = len(singles)
        plan.num_prefill_tokens = sum(count for _, count in chunks)
        running.num_scheduled[plan.slots] = plan.ends
        running.num_tokens[plan.slots] = num_tokens + plan.samples
        plan.releases, running.released = running.released, []
        return plan


_NO_ROWS: Int64 = np.zeros(0, np.int64)
_NO_SAMPLES: Mask = np.zeros(0, bool)


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


def _name(sequence: Sequence) -> str:
    return f"request {sequence.request.label!r} output {sequence.output_index}"


def _is_long(row: tuple[int, int]) -> bool:
    return row[1] > 1
