"""The shares of prompts in a plan, by the contract alone: by age and by length, and nobody starves.

The contract stands at the head of `scheduler/core/prefill.py` and `scheduler/core/gate.py`.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from clients import Clients
from fake_group import FakeGroup
from fake_memory import demand

from quire.scheduler.core.core import Core
from quire.scheduler.core.gate import HEADROOM_SHARE
from quire.scheduler.state.sequence import Sequence

Order = tuple[int, int, int]
"""Priority, order of submission, output index."""


@dataclass(slots=True)
class Prompt:
    """An output in a slot with tokens to run before it draws: so many were left before the plan, so many it ran."""

    sequence: Sequence
    order: Order
    left: int
    ran: int
    is_new: bool = False
    """It entered with this plan."""
    num_cached: int = 0
    """Tokens that were found in the cache when it entered."""
    by_age: int = 0
    """Tokens it ran that the half by age owed it."""

    @property
    def length(self) -> int:
        """Tokens it had to run beyond the half by age."""
        return self.left - self.by_age

    @property
    def rest(self) -> int:
        return self.left - self.ran

    @property
    def name(self) -> str:
        return f"seed {self.sequence.request.params.seed}/{self.sequence.output_index}"


class Fairness:
    """The check of one worker group's plans. `before` and `check` are called around every plan."""

    def __init__(self, core: Core, clients: Clients) -> None:
        self._core = core
        self._clients = clients
        self._prompts: list[Prompt] = []
        """Those of the plan that is checked."""
        self._first: Sequence | None = None
        """The first in line before the plan."""
        self._num_preemptions = 0
        self._num_passed: dict[Sequence, int] = {}
        """Plans that passed over a whole prompt that was first in line and could have entered."""
        self._owed: dict[Sequence, int] = {}
        """Tokens that an output and those before it may still take of the halves by age, until it draws."""
        self._rest: dict[Sequence, int] = {}
        """Tokens of `_owed` that the last plan left to run."""

    def before(self) -> None:
        self._first = self._core.live_requests.waiting.first()
        self._num_preemptions = self._core.counters.num_preemptions

    def check(self, group: FakeGroup) -> None:
        """The plan the group has just run. Raises `Broken`."""
        core, group_epoch = self._core, self._core.group_epoch
        assert group_epoch is not None
        entered = {(seed, index): num_cached for seed, index, num_cached in group.admitted}
        prompts: list[Prompt] = []
        budget = group.max_num_batched_tokens - len(group.ran)
        for sequence in group_epoch.running.live():
            name = sequence.request.params.seed, sequence.output_index
            if group.left[name] > 1 or name in entered or name in group.before_image:
                left, ran, num_cached = group.left[name], group.ran.get(name, 0), entered.get(name, 0)
                prompts.append(Prompt(sequence, self._order(sequence), left, ran, name in entered, num_cached))
                budget += name in group.ran
        prompts.sort(key=lambda prompt: prompt.order)
        self._prompts = prompts
        is_whole = group.facts.whole_prompts or not core.config.enable_chunked_prefill
        if group.facts.windows:  # a prompt under way takes blocks as it goes, and may have to wait for them
            self._check_first(prompts, 0 if group_epoch.memory.pool.fenced else budget, is_whole)
            return
        passing = self._check_entries(prompts, entered)
        if group.facts.media is not None:  # who waits for encoder memory leaves its tokens to others
            self._check_first(prompts, budget, is_whole)
            return
        if is_whole:
            self._check_whole(prompts, passing, budget)
        else:
            self._check_parts(prompts, budget)

    def _order(self, sequence: Sequence) -> Order:
        request = self._clients.by_seed[sequence.request.params.seed]
        return request.submit.priority, request.order, sequence.output_index

    def _has_room(self, sequence: Sequence, num_others: int = 0, num_promised: int = 0) -> bool:
        """A slot and blocks are there for it, beside so many of each and without a look at what is cached."""
        group_epoch = self._core.group_epoch
        assert group_epoch is not None
        running, memory = group_epoch.running, group_epoch.memory
        needed = memory.blocks_for(sequence.num_known) + 1 + memory.pool.num_blocks // HEADROOM_SHARE
        return running.num_slots - running.num_active > num_others and needed + num_promised <= memory.available

    def _num_shared(self, order: Order, prompts: list[Prompt]) -> int:
        """Blocks that the gate kept for one before it that then entered, and found them in the cache."""
        before = [self._num_cached(prompt) for prompt in prompts if prompt.is_new and prompt.order < order]
        return max(before, default=0)

    def _num_cached(self, prompt: Prompt) -> int:
        """Blocks of all groups that it did not take as it entered."""
        group_epoch = self._core.group_epoch
        assert group_epoch is not None
        return sum(prompt.num_cached // size for size in group_epoch.memory.block_sizes)

    def _was_held(self, entrant: Prompt, prompts: list[Prompt]) -> bool:
        """It entered, but blocks may have been short for it until one before it had entered."""
        group_epoch = self._core.group_epoch
        assert group_epoch is not None
        memory = group_epoch.memory
        if not any(prompt.is_new and prompt.order < entrant.order for prompt in prompts):
            return False
        unseen = self._num_shared(entrant.order, prompts) + self._num_cached(entrant)
        return unseen + 1 + memory.pool.num_blocks // HEADROOM_SHARE > memory.available

    def _may_wait(self, sequence: Sequence, was_planned: bool) -> bool:
        """A prompt before it, which runs more in this plan or just did (`was_planned`), begins with blocks of its."""
        group_epoch = self._core.group_epoch
        assert group_epoch is not None
        mine, size, order = sequence.request, group_epoch.facts.block_size, self._order(sequence)
        for prompt in self._prompts:
            other, theirs = prompt.sequence, prompt.sequence.request
            if prompt.order > order or (theirs.adapter, theirs.cache_salt) != (mine.adapter, mine.cache_salt):
                continue
            length = min(sequence.num_known - 1, len(other.tokens))
            differs = np.flatnonzero(sequence.tokens[:length] != other.tokens[:length])
            num_equal = int(differs[0]) if len(differs) else length
            if num_equal // size * size > len(other.tokens) - (prompt.left if was_planned else prompt.rest):
                return True
        return False

    def _is_open(self, sequence: Sequence, num_shared: int = 0, was_planned: bool = False) -> bool:
        """Even after the plan it could have entered, without taking anything from the first in line.

        `num_shared`: blocks that the gate kept for who was first in line then, and that are left.
        """
        if self._may_wait(sequence, was_planned):
            return False
        if self._core.counters.num_preemptions > self._num_preemptions:
            return False
        parent = sequence.request.sequences[0]
        if sequence.output_index and parent.state == "running":
            return False
        first = self._core.live_requests.waiting.first()
        if first is None or first is sequence:
            return self._has_room(sequence, 0, num_shared)
        group_epoch = self._core.group_epoch
        assert group_epoch is not None
        return self._has_room(sequence, 1, max(num_shared, group_epoch.memory.blocks_for(first.num_known)))

    def _check_entries(self, prompts: list[Prompt], entered: Collection[tuple[int, int]]) -> int:
        """Outputs that enter before the first in line leave a slot and blocks for it. Returns how many did."""
        first = self._first
        if first is None or first.state != "waiting":
            return 0
        order = self._order(first)
        passing = [
            one for one in prompts if one.order > order and (one.sequence.request.params.seed, one.order[2]) in entered
        ]
        demand(not passing or self._has_room(first), f"{[one.name for one in passing]} took what {order} needs")
        return len(passing)

    def _check_first(self, prompts: list[Prompt], budget: int, is_whole: bool) -> None:
        """Where images cut prompts, the first in order goes on with every plan, and the unfinished are as few."""
        demand(not prompts or not budget or prompts[0].ran, f"{prompts[:1]} is first, and stands still")
        most = 0 if is_whole else self._core.config.max_num_partial_prefills
        for priority in {prompt.order[0] for prompt in prompts}:
            mine = [one for one in prompts if one.order[0] == priority and not one.sequence.was_misled]
            unfinished = [prompt.name for prompt in mine if prompt.rest]
            demand(len(unfinished) <= most, f"{unfinished} are unfinished, at most {most} may be")

    def _check_whole(self, prompts: list[Prompt], num_passing: int, budget: int) -> None:
        """A prompt runs whole; the first in line is passed over once, by so many that it fits beside their decodes."""
        for prompt in prompts:
            demand(not prompt.rest, f"{prompt.name} runs {prompt.ran} of {prompt.left} tokens, not whole")
        first = self._first
        if first is None or first.state != "waiting":
            return
        order = self._order(first)
        demand(not num_passing or first.num_known + num_passing <= budget, f"{num_passing} keep {order} out")
        left = budget - sum(prompt.ran for prompt in prompts)
        if left >= first.num_known + num_passing:
            demand(not self._is_open(first), f"{left} tokens are left unused, {order} could run")
        if first.num_known <= budget and self._is_open(first):
            self._num_passed[first] = self._num_passed.get(first, 0) + 1
            demand(self._num_passed[first] == 1, f"{order} is passed over again")

    def _check_parts(self, prompts: list[Prompt], budget: int) -> None:
        cut = [prompt for prompt in prompts if prompt.ran and prompt.rest]
        demand(len(cut) <= 2, f"{len(cut)} rows do not reach the end of their prompts")
        total, used = budget, sum(prompt.ran for prompt in prompts)
        demand(used == budget or not any(prompt.rest for prompt in prompts), f"{budget - used} tokens are left unused")
        waiting = {self._order(sequence): sequence for sequence in self._core.live_requests.waiting.sequences()}
        for priority in sorted({order[0] for order in waiting} | {prompt.order[0] for prompt in prompts}):
            mine = [prompt for prompt in prompts if prompt.order[0] == priority]
            unfinished = [prompt.name for prompt in mine if prompt.rest and not prompt.sequence.was_misled]
            most = self._core.config.max_num_partial_prefills
            demand(len(unfinished) <= most, f"{unfinished} are unfinished, at most {most} may be")
            queued = {order: sequence for order, sequence in waiting.items() if order[0] == priority}
            oldest = min(queued, default=None)
            is_idle = used < total and oldest is not None and self._is_open(queued[oldest])
            demand(not is_idle, f"{total - used} tokens are left unused, {oldest} could run")
            self._check_age(mine, oldest, budget)
            self._check_length(mine, queued)
            self._check_debts(mine, queued, budget)
            budget -= sum(prompt.ran for prompt in mine)

    def _check_age(self, prompts: list[Prompt], oldest: Order | None, budget: int) -> None:
        """Half of the tokens go to prompts by age. Who passed the oldest in line, as it waits for the prompt that it
        shares, has entered by its length."""
        share = -(-budget // 2)
        for prompt in prompts:
            has_passed = prompt.is_new and oldest is not None and oldest < prompt.order
            prompt.by_age = 0 if has_passed else min(share, prompt.left)
            demand(prompt.ran >= prompt.by_age, f"{prompt.name} runs {prompt.ran} tokens, by age {prompt.by_age}")
            share -= prompt.by_age

    def _check_length(self, prompts: list[Prompt], waiting: dict[Order, Sequence]) -> None:
        """The tokens beyond that half go to the shortest that the gate lets in.

        It keeps for the first in line blocks for all its tokens, cached or not: after the plan more may be available.
        """
        for prompt in prompts:
            # One that entered now was chosen before anybody knew how much of it is cached.
            shorter = [one for one in prompts if one.rest and one.length + one.num_cached < prompt.length]
            extra = prompt.ran - prompt.by_age
            is_behind = extra and any(not (one.is_new and self._was_held(one, prompts)) for one in shorter)
            demand(not is_behind, f"{prompt.name} runs {extra} tokens before shorter ones are done")
        for order, sequence in waiting.items():
            longer = [prompt for prompt in prompts if prompt.length > sequence.num_known]
            if sum(prompt.ran - prompt.by_age for prompt in longer) >= sequence.num_known:
                is_open = self._is_open(sequence, self._num_shared(order, prompts), was_planned=True)
                demand(not is_open, f"{order} waits for longer prompts, and need not")

    def _check_debts(self, prompts: list[Prompt], waiting: dict[Order, Sequence], budget: int) -> None:
        """Nobody starves: until an output draws, the halves by age are spent on it and on those before it.

        So it waits no longer than all their tokens take in halves; what is preempted, or comes with a death, is run
        again and adds to it.
        """
        if not budget:
            return
        inside = {prompt.order: prompt for prompt in prompts}
        before = rest = 0
        is_served = False
        oldest = min(waiting, default=None)
        for order in sorted((*inside, *waiting)):
            prompt = inside.get(order)
            sequence = waiting[order] if prompt is None else prompt.sequence
            before += sequence.num_known if prompt is None else prompt.left
            rest += sequence.num_known if prompt is None else prompt.rest
            is_served = is_served or (prompt.rest > 0 if prompt else order == oldest and self._is_open(sequence))
            owed = self._owed.get(sequence, 0) + max(0, before - self._rest.get(sequence, 0))
            if is_served and (prompt is None or prompt.rest):
                owed -= -(-budget // 2)
                demand(owed >= 0, f"{order} starves: the halves by age went elsewhere, {-owed} tokens by now")
            self._owed[sequence], self._rest[sequence] = owed, rest
