"""The gate between the queue and the slots: an output enters when a slot, blocks and budget are there for it.

An output may pass others that wait longer only where its slot and blocks leave enough for the first of them: passing
costs the first in line budget, never memory. While that one is held for memory itself, nobody passes it.
"""

from collections.abc import Iterable
from typing import Final, Literal

from quire.proto.messages.plans import NO_BLOCK, Admit
from quire.proto.transport.wire import ints
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.media.encoding import STALLED, Encoding, Shortage
from quire.scheduler.core.siblings import Siblings
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.in_flight import PlannedStep
from quire.scheduler.state.sequence import Sequence
from quire.scheduler.state.waiting import Waiting

HEADROOM_SHARE = 64
"""While others run, an admission leaves one block and 1/64 of all available, or it would be preempted at once."""

Cause = Literal["slots", "budget", "blocks", "fences", "parent", "sibling"] | Shortage
CAUSE_DETAILS: Final[dict[Cause, str]] = {
    "slots": "it is next, but every slot is taken",
    "budget": "it is next, but the token budget of the step is spent",
    "blocks": "it is next, but blocks are short",
    "fences": "it is next, but running outputs wait for blocks themselves",
    "parent": "it is next, but shares the prompt of output 0, which is not planned to its end yet",
    "sibling": "it is next, but begins like a prompt under way, and waits for what it can share of that",
    "encoder_budget": "it is next, but the encoder budget of the step is spent",
    "encoder_memory": f"it is next, but {STALLED}",
}
SKIPPED: Final[frozenset[Cause | None]] = frozenset({"parent", "sibling", "encoder_budget", "encoder_memory"})
"""Causes that say nothing about those behind."""


class Gate:
    """Admits waiting outputs to slots, and logs why the first in line is held back. It opens for one plan at a time."""

    def __init__(
        self,
        config: SchedulerConfig,
        group_epoch: Epoch,
        waiting: Waiting,
        counters: Counters,
        encoding: Encoding,
    ) -> None:
        self._encoding = encoding
        self._group_epoch = group_epoch
        self._running = group_epoch.running
        self._memory = group_epoch.memory
        self._waiting = waiting
        self._counters = counters
        self._siblings = Siblings(group_epoch)
        self.takes_whole = group_epoch.facts.whole_prompts or not config.enable_chunked_prefill
        """Prompts run in one step or not at all."""
        self._blocked: tuple[Sequence, int] | None = None
        """The first in line and the blocks it needed; it is not matched again before so many are available."""
        self._held: tuple[Sequence, set[Cause]] | None = None
        """The first in line and the causes that have held it back, each logged once."""
        self._plan: PlannedStep
        self._budget = 0
        self._now = 0.0
        self.is_open = False
        """Outputs may still enter with this plan. Closed when slots are out or the first in line is held for memory."""
        self.refusal: Cause | None = None
        """Cause that kept out the output tried last; None: it entered."""
        self._shortage: Shortage | None = None
        """Cause that kept out one with items: in this plan no other with items is looked at."""
        self._tried: tuple[Sequence, Cause] | None = None
        """The first in line, when it was refused for this plan, and the cause."""

    def open(self, plan: PlannedStep, budget: int, is_stalled: bool, now: float) -> None:
        """Begin with a plan that has `budget` tokens for prompts. `is_stalled`: running outputs wait for blocks."""
        self._plan, self._budget, self._now = plan, budget, now
        self.refusal = self._tried = self._shortage = None
        self.is_open = self._running.has_free_slot and not is_stalled
        if is_stalled and (first := self._waiting.first()) is not None:
            self._tried = first, "fences"

    def close(self) -> None:
        """End admission to this plan, and log, once per cause, why the first in line does not run yet."""
        self.is_open = False
        sequence = self._waiting.first()
        if sequence is None:
            return
        cause: Cause = "budget" if self._running.has_free_slot else "slots"
        if self._tried is not None and self._tried[0] is sequence:
            cause = self._tried[1]
        if self._held is None or self._held[0] is not sequence:
            self._held = sequence, set()
        if cause in self._held[1]:
            return
        self._held[1].add(cause)
        detail = CAUSE_DETAILS[cause]
        if cause == "blocks" and self._blocked is not None:
            detail = f"{detail}: it needs {self._blocked[1]}, {self._memory.available} are available"
        sequence.note(self._now, "blocked", sequence.num_known, detail)

    def was_refused(self, sequence: Sequence) -> bool:
        """The output is the first in line and was refused for this plan already."""
        return self._tried is not None and self._tried[0] is sequence

    def lets_pass(self, sequence: Sequence) -> bool:
        """The output is the first in line, or leaves that one a slot, blocks, and room in a later step to run whole."""
        first = self._waiting.first()
        if first is None or first is sequence:
            return True
        running, memory = self._running, self._memory
        needed = memory.blocks_for(sequence.num_known) + memory.blocks_for(first.num_known) + self._headroom
        if running.num_slots - running.num_active < 2 or needed > memory.available:
            return False
        # What enters now decodes in the next steps: the first in line, run whole, must still fit beside it.
        decodes = self.takes_whole and not self._group_epoch.facts.makes_vectors
        return not decodes or first.num_known + len(self._plan.admits) + 1 <= self._budget

    def enter(self, sequence: Sequence, budget: int, others: Iterable[Sequence]) -> int:
        """Put the output into a slot with blocks for all its tokens. Returns the tokens to run, 0 when it cannot enter.

        `budget`: tokens that it may run in this step, for a prompt or a span that runs whole. `others`: prompts under
        way that it may wait for.
        """
        num_computed, self.refusal = self._reserve(sequence, budget, others)
        if self.refusal is not None:
            if sequence is self._waiting.first():
                self._tried = sequence, self.refusal
            self.is_open = self.refusal != "blocks"
            return 0
        num_passed = self._waiting.num_before(sequence)
        self._waiting.take(sequence, self._now)
        if sequence.first_ran_at < 0:
            sequence.first_ran_at = self._now
            self._counters.queue_seconds.add(self._now - sequence.request.arrived_at)
        self._running.enter(sequence, num_computed, self._memory.publish_at(sequence))
        sequence.num_shared, sequence.awaited = num_computed, None
        detail = f"{num_computed} of {sequence.num_known} tokens are there, {sequence.blocks_in_words} reserved"
        if num_under_way := self._memory.num_under_way(sequence):
            detail = f"{detail}; a step under way writes {num_under_way} of these tokens"
        if num_passed:
            self._counters.num_passed += 1
            detail = f"{detail}; it passed {num_passed} that were before it"
        sequence.note(self._now, "admitted", num_computed, detail)
        self._plan.admits.append(self._describe(sequence, num_computed))
        self.is_open = self._running.has_free_slot
        return sequence.num_known - num_computed

    def plan(self, sequence: Sequence, num_granted: int, count: int) -> int:
        """Run up to `count` tokens of the prompt in this plan, behind those granted before. Returns how many: items may
        have to wait. Whoever enters now may share the blocks that they fill.
        """
        slot = sequence.slot
        begin = int(self._running.num_scheduled[slot]) + num_granted
        end = begin + count
        if self._memory.windows:
            end = max(begin, self._memory.reach(sequence, end, self._num_spare))
        end = self._encoding.reach(sequence, begin, self._encoding.whole(sequence, begin, end))
        if self._memory.windows:
            self._extend(sequence, end)
        self._memory.plan(sequence, self._running.history[slot], end, self._group_epoch.in_flight.step + 1)
        return end - begin

    def least(self, sequence: Sequence) -> int:
        """Tokens of a running output's prompt that the next plan with any of them runs together."""
        return self._encoding.least(sequence, int(self._running.num_scheduled[sequence.slot]))

    @property
    def _num_spare(self) -> int:
        """Blocks that prompts under way may take: others go on, too."""
        return self._memory.available - (self._headroom if self._running.num_active > 1 else 0)

    def _extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Give a running output the blocks for so many tokens, which must be available."""
        for group, count in enumerate(self._memory.missing_by_group(sequence, num_tokens)):
            for block in self._memory.take(count):
                self._plan.appends[group] += (sequence.slot, len(sequence.tables[group]), block)
                sequence.tables[group].append(block)
        self._running.count_blocks(sequence)

    @property
    def num_promised(self) -> int:
        """Blocks that the first in line needs to enter, headroom included; none when nobody waits."""
        first = self._waiting.first()
        return 0 if first is None else self._memory.blocks_for(first.num_known) + self._headroom

    @property
    def _headroom(self) -> int:
        return 1 + self._memory.pool.num_blocks // HEADROOM_SHARE

    def _reserve(self, sequence: Sequence, budget: int, others: Iterable[Sequence]) -> tuple[int, Cause | None]:
        """Reserve blocks for all known tokens of a waiting output. Returns its computed tokens, or why not."""
        request, memory = sequence.request, self._memory
        memory.list_planned()
        parent = request.sequences[0]
        is_new = sequence.num_known == request.num_prompt
        if is_new and sequence.output_index and parent.state == "running" and memory.may_fork(parent):
            return self._fork(parent, sequence)
        if self._is_blocked(sequence):
            return 0, "blocks"
        if self._siblings.is_awaited(sequence):
            return 0, "sibling"
        if request.media and self._shortage is not None:
            return 0, self._shortage
        num_computed, hits = memory.match(sequence)
        if self._siblings.await_one(sequence, num_computed, others):
            return 0, "sibling"
        least = sequence.num_known - num_computed if self.takes_whole else self._encoding.least(sequence, num_computed)
        if least > budget:
            return 0, "budget"
        if self._lacks_items(sequence, num_computed):
            return 0, self._shortage
        shared = memory.shared(hits, num_computed)
        if not self._fits(sequence, num_computed, shared):
            return 0, "blocks"
        memory.reserve(sequence, sequence.num_known, num_computed, shared)
        sequence.entries = hits
        pairs = (pair for columns in zip(hits, shared, strict=True) for pair in zip(*columns, strict=True))
        sequence.borrowed = frozenset(block for entry, block in pairs if entry.step and block != NO_BLOCK)
        if sequence.first_ran_at < 0:
            self._counters.began(request.num_prompt, min(num_computed, request.num_prompt))
        if sequence.roots and sequence.first_ran_at < 0:
            self._counters.prefix_queries += request.num_prompt
            self._counters.prefix_hits += min(num_computed, request.num_prompt)
            self._counters.prefix_planned_hits += min(memory.num_under_way(sequence), request.num_prompt)
            sequence.cached_tokens = min(num_computed, request.num_prompt)
        return num_computed, None

    def _fork(self, parent: Sequence, sequence: Sequence) -> tuple[int, Cause | None]:
        """Share the prompt that the first output has planned; copy the block of its last token, to run that again."""
        running, memory = self._running, self._memory
        num_prompt = sequence.request.num_prompt
        # Copies are done before the rows of this plan, so plans already sent must have written all of the prompt.
        sent = self._group_epoch.in_flight.step
        borrows_now = parent.borrowed and any(entry.step > sent for found in parent.entries for entry in found)
        if running.num_scheduled[parent.slot] < num_prompt or borrows_now:
            return 0, "parent"
        if self._lacks_items(sequence, num_prompt - 1):
            return 0, self._shortage
        cuts = [divmod(num_prompt - 1, size) for size in memory.block_sizes]
        shared = [table[:num_shared] for table, (num_shared, _) in zip(parent.tables, cuts, strict=True)]
        if not self._fits(sequence, num_prompt - 1, shared):
            return 0, "blocks"
        memory.reserve(sequence, num_prompt, num_prompt - 1, shared)
        sequence.roots = parent.roots
        sequence.entries = [entries[:num_shared] for entries, (num_shared, _) in zip(parent.entries, cuts, strict=True)]
        if running.num_computed[parent.slot] < num_prompt:
            sequence.borrowed = frozenset(block for held in parent.held_blocks for block in held)
        for group, (num_shared, offset) in enumerate(cuts):
            if offset:
                self._plan.copies += (parent.tables[group][num_shared], sequence.tables[group][num_shared])
        if sequence.first_ran_at < 0:
            sequence.cached_tokens = num_prompt - 1
        return num_prompt - 1, None

    def _lacks_items(self, sequence: Sequence, num_computed: int) -> bool:
        """The tokens behind those computed, as many as must run at once, are of items that this plan cannot have."""
        if not sequence.request.media:
            return False
        stop = sequence.num_known if self.takes_whole else num_computed + 1
        self._shortage = self._encoding.shortage(sequence, num_computed, stop)
        return self._shortage is not None

    def _fits(self, sequence: Sequence, num_computed: int, shared: list[list[int]]) -> bool:
        needed = self._memory.missing(sequence.num_known, num_computed, shared)
        if self._running.num_active:
            needed += self._headroom
        self._blocked = None if needed <= self._memory.available else (sequence, needed)
        return self._blocked is None

    def _is_blocked(self, sequence: Sequence) -> bool:
        """The output was matched before and still lacks blocks. Alone it is always tried: it needs no headroom then."""
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
            tables=tuple(ints(table) for table in sequence.tables),
            adapter=self._group_epoch.adapters[request.adapter] if request.adapter else 0,
            spans=tuple(item.span for item in request.media),
            second_text=request.second_text,
        )
