"""A worker group without tensors: it obeys real frames exactly and raises `Broken` at every frame it should not get."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import oracle
from oracle import CELL

from quire.proto.params import SamplingParams
from quire.proto.plans import GENESIS, Admit, RowLogprobs, StepPlan, StepResult, plan_hash
from quire.proto.requests import ModelFacts, TokenLogprobs
from quire.proto.wire import ints, plan_decoder, unpack


class Broken(AssertionError):
    """The scheduler broke a promise."""


def demand(truth: object, message: str) -> None:
    if not truth:
        raise Broken(message)


@dataclass(slots=True)
class Slot:
    """What a worker's tables hold of one sequence."""

    params: SamplingParams
    output_index: int
    tenant: bytes
    tokens: list[int]
    num_prompt: int
    computed: int
    table: list[int]
    frozen: set[int]
    """Blocks that came with content: read, never written."""
    chain: bytearray = field(default_factory=bytearray)
    """The cells that `tokens` must find in its table."""

    @property
    def name(self) -> tuple[int, int]:
        return self.params.seed, self.output_index


class FakeGroup:
    """`world_size` ranks that run plans in order; when each plan's acknowledgement arrives is the caller's choice.

    A sequence's seed is its request's name here. `tenant_of(seed)` says which salt and adapter it must not leave.
    """

    def __init__(
        self,
        epoch: int,
        facts: ModelFacts,
        world_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        tenant_of: Callable[[int], bytes],
        is_bad: Callable[[int, int, int], bool] = lambda seed, index, position: False,
    ) -> None:
        self.epoch = epoch
        self.facts = facts
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.tenant_of = tenant_of
        self.is_bad = is_bad
        self.step = 0
        self.acknowledged = [0] * world_size
        """Newest step of each rank that the scheduler was told of."""
        self.slots: dict[int, Slot] = {}
        self.admitted: list[tuple[int, int, int]] = []
        """(seed, output index, tokens found in the cache) of the last plan's admits, in order."""
        self.told = ""
        """The last plan in words."""
        self._previous = GENESIS
        self._decoder = plan_decoder()
        self._cells = bytearray(facts.num_blocks * facts.block_size * CELL)
        self._users = [0] * facts.num_blocks
        """Table entries naming each block."""
        self._touched = [0] * facts.num_blocks
        """Newest step that reads or writes each block."""
        self._written = [(0, 0)] * facts.num_blocks
        """(newest step that writes it, seed of the writer)."""
        self._poison: dict[int, int] = {}
        """Cell -> seed of the request whose step gave numbers that are not finite."""

    def run(self, frame: bytes) -> StepResult:
        """Obey one plan. Raises `Broken`."""
        plan = self._decoder.decode(frame)
        demand(isinstance(plan, StepPlan), f"not a plan: {type(plan).__name__}")
        demand(plan.epoch == self.epoch, f"plan of epoch {plan.epoch} in epoch {self.epoch}")
        demand(plan.step == self.step + 1, f"plan {plan.step} after plan {self.step}")
        demand(plan.previous == self._previous, f"plan {plan.step} names another predecessor")
        self.step = plan.step
        self._previous = plan_hash(frame)
        for slot in unpack(plan.releases).tolist():
            self._release(slot)
        copies = unpack(plan.copies, 2).tolist()
        self._admit(plan.admits, {target for _, target in copies})
        for slot, index, block in unpack(plan.appends, 3).tolist():
            demand(slot in self.slots, f"append to empty slot {slot}")
            table = self.slots[slot].table
            demand(index == len(table), f"append at {index} of a table of {len(table)}")
            self._hand_out(block)
            table.append(block)
        for source, target in copies:
            self._copy(source, target)
        self.told = (
            f"releases={unpack(plan.releases).tolist()} admits={self.admitted} copies={copies} "
            f"appends={unpack(plan.appends, 3).tolist()} slots={unpack(plan.slots).tolist()} "
            f"num_tokens={unpack(plan.num_tokens).tolist()}"
        )
        return self._run_rows(plan)

    def _release(self, slot: int) -> None:
        demand(slot in self.slots, f"release of empty slot {slot}")
        for block in self.slots.pop(slot).table:
            self._users[block] -= 1

    def _admit(self, admits: Iterable[Admit], copied: set[int]) -> None:
        self.admitted.clear()
        size = self.facts.block_size
        for admit in admits:
            tokens, table = unpack(admit.tokens).tolist(), unpack(admit.blocks).tolist()
            demand(0 <= admit.slot < self.max_num_seqs, f"admit to slot {admit.slot}, outside the table")
            demand(admit.slot not in self.slots, f"admit to slot {admit.slot}, in use")
            demand(0 <= admit.num_computed < len(tokens), f"{admit.num_computed} of {len(tokens)} tokens computed")
            demand(0 < admit.num_prompt <= len(tokens), f"prompt of {admit.num_prompt} in {len(tokens)} tokens")
            demand(len(table) * size >= admit.num_computed, f"{admit.num_computed} tokens in {len(table)} blocks")
            held = -(-admit.num_computed // size)
            shared = {block for block in table[:held] if block not in copied}
            tenant = self.tenant_of(admit.params.seed)
            slot = Slot(
                admit.params, admit.output_index, tenant, tokens, admit.num_prompt, admit.num_computed, table, shared
            )
            oracle.extend(slot.chain, tenant, tokens)
            for block in table:
                if block in shared:
                    self._share(block, admit.params.seed)
                else:
                    self._hand_out(block)
            self.slots[admit.slot] = slot
            self.admitted.append((*slot.name, admit.num_computed))

    def _share(self, block: int, seed: int) -> None:
        step, writer = self._written[block]
        demand(
            step <= min(self.acknowledged) or writer == seed,
            f"block {block} is shared before its step {step} is acknowledged by every rank",
        )
        self._users[block] += 1

    def _hand_out(self, block: int) -> None:
        demand(0 <= block < self.facts.num_blocks, f"block {block} is outside the pool")
        demand(self._users[block] == 0, f"block {block} is handed out while a table names it")
        demand(
            self._touched[block] <= min(self.acknowledged),
            f"block {block} is handed out while step {self._touched[block]} may touch it",
        )
        self._users[block] = 1

    def _copy(self, source: int, target: int) -> None:
        size = self.facts.block_size
        demand(self._users[target] == 1, f"copy to block {target}, named by {self._users[target]} tables")
        at, to = source * size * CELL, target * size * CELL
        self._cells[to : to + size * CELL] = self._cells[at : at + size * CELL]
        for offset in range(size):
            poison = self._poison.get(source * size + offset)
            self._poison.pop(target * size + offset, None)
            if poison is not None:
                self._poison[target * size + offset] = poison
        self._touched[source] = self._touched[target] = self.step
        self._written[target] = (self.step, self._written[source][1])

    def _run_rows(self, plan: StepPlan) -> StepResult:
        slots, lengths = unpack(plan.slots).tolist(), unpack(plan.num_tokens).tolist()
        demand(len(slots) == len(lengths) == len(plan.samples), "the row columns differ in length")
        demand(not any(plan.num_draft), "drafts were never asked for")
        demand(len(set(slots)) == len(slots), f"a slot has two rows: {slots}")
        demand(len(slots) <= self.max_num_seqs, f"{len(slots)} rows, at most {self.max_num_seqs}")
        demand(
            sum(lengths) <= self.max_num_batched_tokens,
            f"{sum(lengths)} tokens in a step, at most {self.max_num_batched_tokens}",
        )
        tail = [length > 1 for length in lengths]
        demand(tail == sorted(tail), f"a row of one token after a longer one: {lengths}")
        drawn: list[int] = []
        bad: list[int] = []
        logprobs: list[RowLogprobs] = []
        for row, (number, length, samples) in enumerate(zip(slots, lengths, plan.samples, strict=True)):
            demand(number in self.slots, f"row of empty slot {number}")
            slot = self.slots[number]
            start, end = slot.computed, slot.computed + length
            demand(length > 0 and end <= len(slot.tokens), f"{slot.name}: row {start}..{end} of {len(slot.tokens)}")
            demand(samples == (end == len(slot.tokens)), f"{slot.name}: samples={samples} at {end}/{len(slot.tokens)}")
            demand(end < self.facts.max_model_len or not samples, f"{slot.name}: token beyond the context length")
            finite = self._read(slot, start)
            if samples and self.is_bad(*slot.name, len(slot.tokens)):
                finite = False
            self._write(slot, start, end, finite)
            slot.computed = end
            if slot.params.prompt_logprobs >= 0:
                logprobs += self._prompt_logprobs(row, slot, start, end)
            if samples:
                drawn.append(self._draw(slot, finite))
                if not finite:
                    bad.append(row)
                elif slot.params.logprobs >= 0:
                    logprobs.append(RowLogprobs(row, False, end, (_entry(drawn[-1]),)))
        return StepResult(self.epoch, self.step, ints(drawn), bad_rows=tuple(bad), logprobs=tuple(logprobs))

    def _read(self, slot: Slot, start: int) -> bool:
        """Compare everything the row attends to with what its tokens must have left there; False if not finite."""
        size = self.facts.block_size
        stride = size * CELL
        cells = b"".join([self._cells[b * stride : (b + 1) * stride] for b in slot.table[: -(-start // size)]])
        if cells[: start * CELL] == slot.chain[: start * CELL]:
            return True
        for position in range(start):
            at = position * CELL
            if cells[at : at + CELL] == slot.chain[at : at + CELL]:
                continue
            block = slot.table[position // size]
            demand(
                self._poison.get(block * size + position % size) == slot.params.seed,
                f"{slot.name} reads wrong content at position {position} (block {block}, step {self.step})",
            )
        return False

    def _write(self, slot: Slot, start: int, end: int, finite: bool) -> None:
        size = self.facts.block_size
        demand(end <= len(slot.table) * size, f"{slot.name} writes up to {end}, its table has {len(slot.table)} blocks")
        for block in slot.table[: -(-end // size)]:
            self._touched[block] = self.step
        for index in range(start // size, -(-end // size)):
            block = slot.table[index]
            demand(block not in slot.frozen, f"{slot.name} writes block {block}, which it was given to read")
            demand(self._users[block] == 1, f"{slot.name} writes block {block}, shared by {self._users[block]}")
            low, high = max(start, index * size), min(end, (index + 1) * size)
            at = block * size + low - index * size
            content = slot.chain[low * CELL : high * CELL] if finite else b"\xff" * ((high - low) * CELL)
            self._cells[at * CELL : (at + high - low) * CELL] = content
            self._written[block] = (self.step, slot.params.seed)
            if self._poison or not finite:
                for cell in range(at, at + high - low):
                    self._poison.pop(cell, None)
                    if not finite:
                        self._poison[cell] = slot.params.seed

    def _draw(self, slot: Slot, finite: bool) -> int:
        eos, output = self.facts.eos_token_ids, len(slot.tokens) - slot.num_prompt
        mask = oracle.banned(slot.params, eos, output)
        token = oracle.draw(slot.chain, slot.params, slot.output_index, self.facts.vocab_size, mask)
        if not finite:
            token = (token + 1) % self.facts.vocab_size
        slot.tokens.append(token)
        oracle.extend(slot.chain, slot.tenant, (token,))
        return token

    def _prompt_logprobs(self, row: int, slot: Slot, start: int, end: int) -> list[RowLogprobs]:
        """The rows' logits at positions start..end-1 price the tokens start+1..end, as far as they are prompt."""
        tokens = slot.tokens[start + 1 : min(end + 1, slot.num_prompt)]
        return [RowLogprobs(row, True, start + 1, tuple(_entry(token) for token in tokens))] if tokens else []


def _entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(token_id=token, logprob=-1.0, rank=1)
