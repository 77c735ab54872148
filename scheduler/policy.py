"""Who runs in the next step: decodes first, then prefill under way, then admissions in rank order.

First come, first served within a priority, without overtaking: when the best waiting output does not fit, nobody
behind it is tried. A running output that needs a block when there is none takes it from the worst ranked one.
"""

from typing import Final, Literal

import numpy as np

from quire.proto.plans import Admit
from quire.proto.wire import ints
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.counters import Counters
from quire.scheduler.era import Era
from quire.scheduler.pipeline import Draft
from quire.scheduler.running import Int64
from quire.scheduler.sequence import Sequence
from quire.scheduler.waiting import Waiting

HEADROOM_SHARE = 64
"""While others run, an admission leaves one block and one in so many available, or it would be preempted at once."""
MAX_HOLDERS = 2
"""Named to an output that lost its slot because others hold the blocks."""

Cause = Literal["slots", "budget", "blocks", "fences", "parent"]
WHY: Final[dict[Cause, str]] = {
    "slots": "it is next, but every slot is taken",
    "budget": "it is next, but the token budget of the step is spent",
    "blocks": "it is next, but blocks are short",
    "fences": "it is next, but running outputs wait for blocks themselves",
    "parent": "it is next, but shares the prompt of output 0, which is not planned to its end yet",
}


class Policy:
    """Drafts the plans of one era. Counts tokens, never looks at their values."""

    def __init__(self, config: SchedulerConfig, era: Era, waiting: Waiting, counters: Counters) -> None:
        self._config = config
        self._era = era
        self._running = era.running
        self._memory = era.memory
        self._waiting = waiting
        self._counters = counters
        self._blocked: tuple[Sequence, int] | None = None
        """The best waiting output and the available blocks it lacked; not matched again before they are there."""
        self._held: tuple[Sequence, set[Cause]] | None = None
        """The best waiting output and why it has been held back."""
        self._cause: Cause = "blocks"
        self._now = 0.0

    def draft(self, now: float) -> Draft | None:
        """The next plan, or None when no row can run. Reserves what the plan needs."""
        running = self._running
        self._now = now
        plan = Draft(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS.astype(bool))
        slots = np.flatnonzero(running.active & (running.num_tokens < running.limit))
        todo = running.num_tokens[slots] - running.num_scheduled[slots]
        is_chunk = todo > 1
        singles = slots[~is_chunk] if is_chunk.any() else slots
        singles, stalled = self._extend(singles, plan)
        budget = self._config.max_num_batched_tokens - len(singles)
        chunks: list[tuple[int, int]] = []
        for sequence in sorted(
            (running.at(slot) for slot in slots[is_chunk].tolist() if running.active[slot]), key=_rank
        ):
            slot = sequence.slot
            count = min(budget, int(running.num_tokens[slot] - running.num_scheduled[slot]))
            if count:
                chunks.append((slot, count))
                budget -= count
        if not stalled:
            self._admit(budget, chunks, plan, now)
        elif (best := self._waiting.first()) is not None:
            self._hold(best, "fences")
        return self._close(plan, singles, chunks)

    def _extend(self, slots: Int64, plan: Draft) -> tuple[Int64, bool]:
        """Give each row whose next token begins a block that block. Returns who can run; True: not all can."""
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
        for sequence in sorted(needy, key=_rank):
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
        """Preempt until a block is available (True), or one will be when a fence falls, or the output itself is out."""
        memory = self._memory
        while sequence.state == "running":
            if memory.available:
                return True
            if len(memory.pool.fenced) > num_promised:
                return False
            self._preempt(max(self._running.live(), key=_rank), sequence)
        return False

    def _preempt(self, sequence: Sequence, by: Sequence) -> None:
        """Out of its slot and back into the queue; what is in flight for it is dropped and drawn again."""
        detail = f"its {len(sequence.blocks)} blocks were taken for {_name(by)}, which needed one and is before it"
        if by is sequence:
            others = sorted((other for other in self._running.live() if other is not sequence), key=_rank)
            holders = ", ".join(f"{_name(other)} with {len(other.blocks)}" for other in others[:MAX_HOLDERS])
            detail = f"it needed a block, and all are held by outputs before it: {holders}"
        self._era.leave(sequence, keep_tokens=True)
        sequence.note(self._now, "preempted", sequence.num_known, detail)
        sequence.move("waiting")
        sequence.num_preemptions += 1
        self._counters.num_preemptions += 1
        self._waiting.push(sequence)

    def _admit(self, budget: int, chunks: list[tuple[int, int]], plan: Draft, now: float) -> None:
        running = self._running
        while budget and running.has_free_slot:
            sequence = self._waiting.first()
            if sequence is None:
                return
            num_computed = self._reserve(sequence, budget, plan)
            if num_computed < 0:
                self._hold(sequence, self._cause)
                return
            self._waiting.pop(now)
            if sequence.first_ran_at < 0:
                sequence.first_ran_at = now
                self._counters.queue_seconds.add(now - sequence.request.arrived_at)
            slot = running.enter(sequence, num_computed)
            detail = f"{num_computed} of {sequence.num_known} tokens are there, {len(sequence.blocks)} blocks reserved"
            sequence.note(now, "admitted", num_computed, detail)
            plan.admits.append(self._describe(sequence, num_computed))
            count = min(budget, sequence.num_known - num_computed)
            chunks.append((slot, count))
            budget -= count
        if (sequence := self._waiting.first()) is not None:
            self._hold(sequence, "slots" if budget else "budget")

    def _hold(self, sequence: Sequence, cause: Cause) -> None:
        """Note, once per cause, why the best waiting output does not run yet."""
        if self._held is None or self._held[0] is not sequence:
            self._held = sequence, set()
        if cause in self._held[1]:
            return
        self._held[1].add(cause)
        detail = WHY[cause]
        if cause == "blocks" and self._blocked is not None:
            detail = f"{detail}: it needs {self._blocked[1]}, {self._memory.available} are available"
        sequence.note(self._now, "blocked", sequence.num_known, detail)

    def _reserve(self, sequence: Sequence, budget: int, plan: Draft) -> int:
        """Reserve blocks for all known tokens of a waiting output. Returns its computed tokens, or -1: not now."""
        request, memory = sequence.request, self._memory
        parent = request.sequences[0]
        is_new = sequence.num_known == request.num_prompt
        if is_new and sequence.output_index and parent.state == "running":
            return self._fork(parent, sequence, plan)
        self._cause = "blocks"
        if self._is_blocked(sequence):
            return -1
        hits = memory.match(sequence)
        num_computed = len(hits) * memory.block_size
        is_whole = self._era.facts.whole_prompts or not self._config.enable_chunked_prefill
        if is_whole and sequence.num_known - num_computed > budget:
            self._cause = "budget"
            return -1
        shared = [entry.block for entry in hits]
        if not self._fits(sequence, shared):
            return -1
        memory.reserve(sequence, sequence.num_known, shared)
        sequence.entries = hits
        if sequence.first_ran_at < 0:
            self._counters.began(request.num_prompt, min(num_computed, request.num_prompt))
        if sequence.root is not None and sequence.first_ran_at < 0:
            self._counters.prefix_queries += request.num_prompt
            self._counters.prefix_hits += min(num_computed, request.num_prompt)
            sequence.cached_tokens = min(num_computed, request.num_prompt)
        return num_computed

    def _fork(self, parent: Sequence, sequence: Sequence, plan: Draft) -> int:
        """Share the prompt the first output has planned, and copy the block its last token is in, to run that again."""
        running, memory = self._running, self._memory
        num_prompt = sequence.request.num_prompt
        # num_scheduled is of the plans already sent: copies are done before the rows of this one.
        self._cause = "parent"
        if running.num_scheduled[parent.slot] < num_prompt:
            return -1
        self._cause = "blocks"
        num_shared, offset = divmod(num_prompt - 1, memory.block_size)
        shared = parent.blocks[:num_shared]
        if not self._fits(sequence, shared):
            return -1
        memory.reserve(sequence, num_prompt, shared)
        sequence.root = parent.root
        sequence.entries = parent.entries[:num_shared]
        if offset:
            plan.copies += (parent.blocks[num_shared], sequence.blocks[num_shared])
        return num_prompt - 1

    def _fits(self, sequence: Sequence, shared: list[int]) -> bool:
        memory = self._memory
        needed = memory.missing(sequence.num_known, shared)
        if self._running.num_active:
            needed += 1 + memory.pool.num_blocks // HEADROOM_SHARE
        self._blocked = None if needed <= memory.available else (sequence, needed)
        return self._blocked is None

    def _is_blocked(self, sequence: Sequence) -> bool:
        """It was matched before and still lacks blocks. Alone it is always tried: it needs no headroom then."""
        if self._blocked is None or not self._running.num_active:
            return False
        return self._blocked[0] is sequence and self._memory.available < self._blocked[1]

    def _describe(self, sequence: Sequence, num_computed: int) -> Admit:
        request = sequence.request
        return Admit(
            slot=sequence.slot,
            tokens=ints(sequence.tokens),
            num_prompt=request.num_prompt,
            num_computed=num_computed,
            output_index=sequence.output_index,
            params=request.params if sequence.wants_prompt_logprobs else request.quiet_params,
            blocks=ints(sequence.blocks),
            adapter=self._era.adapters[request.adapter] if request.adapter else 0,
        )

    def _close(self, plan: Draft, singles: Int64, chunks: list[tuple[int, int]]) -> Draft | None:
        """Fill the row columns, one-token rows first, and count the rows' tokens as scheduled."""
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


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank


def _name(sequence: Sequence) -> str:
    return f"request {sequence.request.label!r} output {sequence.output_index}"


def _is_long(row: tuple[int, int]) -> bool:
    return row[1] > 1
