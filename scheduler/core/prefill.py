"""Division of a step's tokens among prompts: one half by age, the other half by length.

Decodes leave P tokens of a step's budget, and better priorities take of them first. Within a priority ceil(P / 2) go
to prompts in their order; the rest, and what that half does not need, to the shortest first: fewest tokens to run (one
that waits counts whole, whatever of it is cached), the older of equals. So a short prompt is not behind long ones. And
nobody starves: from when the gate would let it in, a prompt of r tokens, with s tokens of older ones before it, draws
its first token within ceil((r + s) / ceil(P / 2)) steps, at most twice what it takes where length counts nothing.

A plan has at most two rows that do not reach the end of their prompt, beside those that are cut right before an item
(`media/encoding.py`) or where blocks of a KV group with a window are short (`gate.py`): what these cannot use goes to
others. Of one priority `max_num_partial_prefills` prompts may be begun and not at their end; one of these places is
kept for the oldest, and one that was sent back to the queue by others' bad numbers takes none.

Where the tokens of an item see each other, and so run in one step (`media/encoding.py`), the first in order gets as
many, whatever its half is: by admission every step has them.

Where prompts run whole, the oldest, if longer than its half, is passed over once; then it goes before all others.
"""

from dataclasses import dataclass

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.gate import SKIPPED, Gate
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.sequence import Sequence
from quire.scheduler.state.waiting import Waiting

MAX_PRIORITIES = 16
"""Priorities that one step considers, the best first: its time must not grow with what waits."""
MAX_SKIPPED = 64
"""Waiting outputs that one step skips because the prompt they share is not there yet."""


@dataclass(slots=True, eq=False)
class PartialPrefill:
    """A prompt that may run in this step."""

    sequence: Sequence
    left: int
    """Tokens that no plan runs yet."""
    granted: int = 0
    """Tokens that this plan runs."""


class Prefill:
    """Divides what decodes leave of each step's budget."""

    def __init__(self, config: SchedulerConfig, group_epoch: Epoch, waiting: Waiting, gate: Gate) -> None:
        self._max_parts = config.max_num_partial_prefills
        self._running = group_epoch.running
        self._waiting = waiting
        self._gate = gate
        self._unfinished: set[PartialPrefill] = set()
        """Those of the priority at hand of which tokens are left."""

    def fill(self, under_way: list[Sequence], budget: int) -> list[tuple[int, int]]:
        """Rows (slot, tokens) of at most `budget` tokens for these prompts and those that enter now."""
        by_priority: dict[int, list[PartialPrefill]] = {}
        for sequence in under_way:
            by_priority.setdefault(sequence.request.priority, []).append(self._part(sequence))
        rows: list[tuple[int, int]] = []
        priority = self._next_priority(None, by_priority)
        for _ in range(MAX_PRIORITIES):
            if not budget or priority is None:
                break
            parts = by_priority.get(priority, [])
            parts.sort(key=_age)
            self._unfinished = {part for part in parts if part.left}
            self._by_age(priority, parts, budget)
            self._by_length(priority, parts, budget - sum(part.granted for part in parts))
            rows += [(part.sequence.slot, part.granted) for part in parts if part.granted]
            budget -= sum(part.granted for part in parts)
            priority = self._next_priority(priority, by_priority)
        return rows

    def _next_priority(self, after: int | None, by_priority: dict[int, list[PartialPrefill]]) -> int | None:
        found = [priority for priority in by_priority if after is None or priority > after]
        if self._gate.is_open and (waiting := self._waiting.next_priority(after)) is not None:
            found.append(waiting)
        return min(found, default=None)

    def _by_age(self, priority: int, parts: list[PartialPrefill], budget: int) -> None:
        """Spend the half by age: prompts in their order. An output that enters is added to `parts`, in its place."""
        share = -(-budget // 2)
        oldest = self._waiting.oldest(priority) if self._gate.is_open else None
        place, is_cut = 0, False
        while share > 0:
            part = parts[place] if place < len(parts) else None
            allowed = share
            if oldest is not None and (part is None or oldest.order < part.sequence.order):
                if self._gate.takes_whole and share < oldest.num_known:
                    allowed = budget if oldest.was_passed and place == 0 else 0
                    oldest.was_passed = place == 0
                enters = allowed > 0 and self._gate.lets_pass(oldest)
                if is_cut:
                    enters = enters and self._has_place(oldest, oldest, allowed)
                part = self._enter(oldest, allowed if place else budget, parts) if enters else None
                if part is None:
                    oldest = None
                    continue
                parts.insert(place, part)
                oldest = self._waiting.oldest(priority) if self._gate.is_open else None
            if part is None:
                return
            if place == 0:
                allowed = max(allowed, min(budget, self._gate.least(part.sequence)))
            share -= self._grant(part, allowed)
            is_cut = is_cut or part.left > 0  # with tokens of the share left: before an item
            place += 1

    def _by_length(self, priority: int, parts: list[PartialPrefill], budget: int) -> None:
        """Spend the rest on the shortest prompts first. An output that enters is added to `parts`, at the end."""
        queue = sorted((part for part in parts if part.left), key=_length, reverse=True)
        num_skipped, goes_on = 0, True
        while budget:
            goes_on = goes_on and num_skipped <= MAX_SKIPPED
            entrant = self._entrant(priority, num_skipped, budget) if goes_on else None
            if entrant is not None and (not queue or entrant.num_known < queue[-1].left):
                part = self._enter(entrant, budget, parts)
                if part is None:
                    goes_on = self._gate.refusal in SKIPPED
                    num_skipped += 1
                    continue
                parts.append(part)
            elif queue:
                part = queue.pop()
                num_skipped = 0  # who was skipped may share what this one runs
            else:
                return
            budget -= self._grant(part, budget)

    def _entrant(self, priority: int, num_skipped: int, budget: int) -> Sequence | None:
        """The output to enter next: the shortest, where it may pass those before it, else the oldest."""
        if not self._gate.is_open:
            return None
        oldest, shortest = self._waiting.oldest(priority), self._waiting.shortest(priority, num_skipped)
        if oldest is None:
            return None
        if shortest is not None and self._may_enter(shortest, oldest, budget):
            return shortest
        is_new = oldest is not shortest and not self._gate.was_refused(oldest)
        return oldest if is_new and self._may_enter(oldest, oldest, budget) else None

    def _may_enter(self, sequence: Sequence, oldest: Sequence, budget: int) -> bool:
        return self._gate.lets_pass(sequence) and self._has_place(sequence, oldest, budget)

    def _has_place(self, sequence: Sequence, oldest: Sequence, budget: int) -> bool:
        """The prompt ends in this step, or is the oldest of the unfinished, or leaves that one a place."""
        if sequence.num_known <= budget and not sequence.request.media:
            return True
        is_led = any(part.sequence.order < oldest.order for part in self._unfinished)
        return (sequence is oldest and not is_led) or len(self._unfinished) + 1 - is_led < self._max_parts

    def _enter(self, sequence: Sequence, budget: int, parts: list[PartialPrefill]) -> PartialPrefill | None:
        others = (part.sequence for part in parts if part.left)  # what others have is planned, and found
        if not self._gate.enter(sequence, budget, others):
            return None
        part = self._part(sequence)
        self._unfinished.add(part)
        return part

    def _grant(self, part: PartialPrefill, budget: int) -> int:
        count = self._gate.plan(part.sequence, part.granted, min(budget, part.left))
        part.granted += count
        part.left -= count
        if not part.left:
            self._unfinished.discard(part)
        return count

    def _part(self, sequence: Sequence) -> PartialPrefill:
        slot = sequence.slot
        return PartialPrefill(sequence, int(self._running.num_tokens[slot] - self._running.num_scheduled[slot]))


def _age(part: PartialPrefill) -> tuple[int, int, int]:
    return part.sequence.order


def _length(part: PartialPrefill) -> tuple[int, tuple[int, int, int]]:
    return part.left, part.sequence.order
