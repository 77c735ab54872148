"""A worker group without tensors: it obeys real frames exactly and raises `Broken` at every frame it should not get."""

from collections.abc import Callable, Iterable

import oracle
from fake_encoder import FakeEncoder, in_words
from fake_memory import GONE, Broken, FakeMemory, Slot, demand
from images import shown

from quire.proto.messages.plans import GENESIS, Admit, RowLogprobs, StepPlan, StepResult, plan_hash
from quire.proto.messages.requests import ModelFacts, PositionLogprobs
from quire.proto.transport.wire import Frames, ints, plan_decoder, unpack


class FakeGroup:
    """`world_size` ranks that run plans in order; when each plan's acknowledgement arrives is the caller's choice.

    A sequence's seed is its request's name here. `tenant_of(seed)` is the tenant whose cache it may read.
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
        on_bad: Callable[[int, int, int], None] = lambda seed, index, position: None,
        num_accepted: Callable[[int], int] = lambda num_draft: 0,
        encoder: FakeEncoder | None = None,
    ) -> None:
        self.epoch = epoch
        self.facts = facts
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.tenant_of = tenant_of
        self.is_bad = is_bad
        """True when a row of (seed, output index) that ends at this position computes values that are not finite."""
        self.on_bad = on_bad
        """Called for every such row that samples a token."""
        self.num_accepted = num_accepted
        """How many of a row's drafts are what the model draws; never asked where nobody drafts."""
        self.memory = FakeMemory(facts.num_blocks, facts.block_sizes, world_size, facts.windows)
        self.encoder = encoder or FakeEncoder(facts.media)
        self.slots: dict[int, Slot] = {}
        self.admitted: list[tuple[int, int, int]] = []
        """(seed, output index, tokens found in the cache) of the last plan's admits, in order."""
        self.left: dict[tuple[int, int], int] = {}
        """(seed, output index) -> tokens that the last plan found not run yet; of every slot."""
        self.ran: dict[tuple[int, int], int] = {}
        """(seed, output index) -> tokens that the last plan ran."""
        self.before_image: set[tuple[int, int]] = set()
        """(seed, output index) of those that the last plan found with tokens of images to run."""
        self._plan: StepPlan | None = None
        self._previous = GENESIS
        self._decoder = plan_decoder()
        self._failed: dict[int, list[int]] = {}
        """Step -> blocks written by its rows that draw and are not finite."""
        self._lives: dict[tuple[int, int], int] = {}
        """(seed, output index) -> how often it was admitted."""

    @property
    def step(self) -> int:
        """The newest plan that was run."""
        return self.memory.step

    @property
    def acknowledged(self) -> list[int]:
        """Newest step of each rank that the scheduler knows of; whoever sends it writes here."""
        return self.memory.acknowledged

    @property
    def last_plan(self) -> str:
        """The last plan in words."""
        plan = self._plan
        assert plan is not None
        columns = {
            "releases": unpack(plan.releases),
            **{f"appends {group}": unpack(column, 3) for group, column in enumerate(plan.appends)},
            "copies": unpack(plan.copies, 2),
            "slots": unpack(plan.slots),
            "num_tokens": unpack(plan.num_tokens),
            "num_draft": unpack(plan.num_draft),
        }
        admits = [(admit.slot, admit.params.seed, admit.output_index, admit.num_computed) for admit in plan.admits]
        words = " ".join(f"{name}={column.tolist()}" for name, column in columns.items() if len(column))
        media = in_words(plan.encodes, plan.binds) if plan.binds else ""
        return f"admits={admits} {words} {media}"

    def run(self, frames: Frames) -> StepResult:
        """Obey one plan. Raises `Broken`."""
        plan = self._decoder.decode(*frames)
        demand(isinstance(plan, StepPlan), f"not a plan: {type(plan).__name__}")
        demand(plan.epoch == self.epoch, f"plan of epoch {plan.epoch} in epoch {self.epoch}")
        demand(plan.step == self.step + 1, f"plan {plan.step} after plan {self.step}")
        demand(plan.previous == self._previous, f"plan {plan.step} names another predecessor")
        self.memory.step = plan.step
        self._previous = plan_hash(*frames)
        for slot in unpack(plan.releases).tolist():
            self._release(slot)
        for sequence in self.slots.values():
            self.memory.slide(sequence)
        demand(len(plan.appends) in (0, len(self.facts.block_sizes)), f"appends of {len(plan.appends)} groups")
        for group, column in enumerate(plan.appends):
            for slot, index, block in unpack(column, 3).tolist():
                demand(slot in self.slots, f"append to empty slot {slot}")
                table = self.slots[slot].tables[group]
                if index < len(table):
                    self._take_back(self.slots[slot], group, index)
                demand(index == len(table), f"append at {index} of a table of {len(table)}")
                self._hand_out(block)
                table.append(block)
        copies = unpack(plan.copies, 2).tolist()
        self._admit(plan.admits, {target for _, target in copies})  # they may share what others have just got
        for source, target in copies:
            self.memory.copy(source, target)
        self._plan = plan
        return self._run_rows(plan, self.encoder.obey(plan, self.slots))

    def poison(self, seed: int, index: int) -> None:
        """The scheduler ended this output because of a bad row: nobody may share what it wrote."""
        self.memory.poisoned.add((seed, index, self._lives[seed, index]))

    def on_result(self, step: int) -> None:
        """The scheduler knows the result of this step: what its bad rows wrote may not be shared any more."""
        self.memory.failed.update(self._failed.pop(step, ()))

    def _hand_out(self, block: int) -> None:
        """A table gets this block. One that holds it for refused drafts loses it first."""
        if self.memory.is_named(block):
            for slot in self.slots.values():
                for group, (table, size) in enumerate(zip(slot.tables, self.facts.block_sizes, strict=True)):
                    if block in table and table.index(block) * size >= slot.computed:
                        self._take_back(slot, group, table.index(block))
        self.memory.hand_out(block)

    def _take_back(self, slot: Slot, group: int, index: int) -> None:
        """The scheduler took back the blocks from this one of the table on: nothing in them counts."""
        table, size = slot.tables[group], self.facts.block_sizes[group]
        demand(index * size >= slot.computed, f"{slot.name} loses block {index}, which it needs")
        self.memory.leave([table[index:]])
        del table[index:]

    def _release(self, slot: int) -> None:
        demand(slot in self.slots, f"release of empty slot {slot}")
        self.memory.leave(self.slots.pop(slot).tables)

    def _admit(self, admits: Iterable[Admit], copied: set[int]) -> None:
        self.admitted.clear()
        sizes = self.facts.block_sizes
        for admit in admits:
            tokens, tables = unpack(admit.tokens).tolist(), [unpack(table).tolist() for table in admit.tables]
            demand(0 <= admit.slot < self.max_num_seqs, f"admit to slot {admit.slot}, outside the table")
            demand(admit.slot not in self.slots, f"admit to slot {admit.slot}, in use")
            demand(0 <= admit.num_computed < len(tokens), f"{admit.num_computed} of {len(tokens)} tokens computed")
            demand(0 < admit.num_prompt <= len(tokens), f"prompt of {admit.num_prompt} in {len(tokens)} tokens")
            demand(len(tables) == len(sizes), f"{len(tables)} tables for {len(sizes)} groups")
            shared: set[int] = set()
            for group, (table, size) in enumerate(zip(tables, sizes, strict=True)):
                demand(len(table) * size >= admit.num_computed, f"{admit.num_computed} tokens in {len(table)} blocks")
                seen = table[self.memory.num_unseen(group, admit.num_computed) :]
                demand(GONE not in seen, f"at {admit.num_computed}, blocks are seen that are not there: {table}")
                shared.update(block for block in table[: -(-admit.num_computed // size)] if block not in copied)
            shared.discard(GONE)
            adapter = ("", *self.facts.adapters)[admit.adapter]
            tenant = self.tenant_of(admit.params.seed) + b"\0" + adapter.encode()
            name = admit.params.seed, admit.output_index
            self._lives[name] = self._lives.get(name, -1) + 1
            slot = Slot(
                admit.params,
                admit.output_index,
                tenant,
                tokens,
                admit.num_prompt,
                admit.num_computed,
                tables,
                shared,
                (*name, self._lives[name]),
                chains=[bytearray() for _ in sizes],
            )
            self.encoder.admit(slot, admit.spans)
            slot.extend(shown(tokens, slot.media))
            others = [other for other in self.slots.values() if other.name[0] == name[0]]
            kin = {block for other in others for table in other.tables for block in table}
            for table, size in zip(tables, sizes, strict=True):
                for block in table:
                    if block == GONE:
                        continue
                    if block in shared:
                        if self.memory.share(block, size, is_fork=block in kin):
                            slot.borrowed.add(block)
                    else:
                        self._hand_out(block)
            self.slots[admit.slot] = slot
            self.admitted.append((*slot.name, admit.num_computed))

    def _run_rows(self, plan: StepPlan, lost: tuple[int, ...]) -> StepResult:
        slots, lengths = unpack(plan.slots).tolist(), unpack(plan.num_tokens).tolist()
        drafts = unpack(plan.num_draft).tolist() if plan.num_draft else [0] * len(slots)
        demand(len(slots) == len(lengths) == len(plan.samples) == len(drafts), "the row columns differ in length")
        demand(len(set(slots)) == len(slots), f"a slot has two rows: {slots}")
        demand(len(slots) <= self.max_num_seqs, f"{len(slots)} rows, at most {self.max_num_seqs}")
        demand(
            sum(lengths) <= self.max_num_batched_tokens,
            f"{sum(lengths)} tokens in a step, at most {self.max_num_batched_tokens}",
        )
        is_long = [length - num_draft > 1 for length, num_draft in zip(lengths, drafts, strict=True)]
        demand(is_long == sorted(is_long), f"a row of one token after a longer one: {lengths}, drafts {drafts}")
        self.left = {slot.name: len(slot.tokens) - slot.computed for slot in self.slots.values()}
        self.before_image = {slot.name for slot in self.slots.values() if slot.computed < slot.images_end}
        self.ran = {
            self.slots[number].name: n for number, n in zip(slots, lengths, strict=True) if number in self.slots
        }
        drawn: list[int] = []
        counts: list[int] = []
        bad: list[int] = []
        logprobs: list[RowLogprobs] = []
        spans = [
            self._span(number, length, num_draft, samples)
            for number, length, num_draft, samples in zip(slots, lengths, drafts, plan.samples, strict=True)
        ]
        self.encoder.check_rows(plan, spans, self.slots)
        rowless = {row for row, span in enumerate(spans) if not self.encoder.has_rows(*span)}
        columns = zip(spans, self._store_and_read(spans, rowless), drafts, plan.samples, strict=True)
        for row, ((slot, start, end), finite, num_draft, samples) in enumerate(columns):
            if not finite and (samples or row in rowless):
                self._failed.setdefault(self.step, []).extend(self.memory.written_in_this_step(slot))
                if not slot.borrowed and row not in rowless:  # else it may not be blamed: it runs again
                    self.on_bad(*slot.name, end)
            slot.computed = end
            if slot.params.prompt_logprobs >= 0:
                logprobs += self._prompt_logprobs(row, slot, start, end)
            if samples:
                tokens = self._verify(slot, num_draft, finite)
                if not finite and slot.params.seed % 3:
                    bad.append(row)
                elif not finite:
                    tokens[-1] = self.facts.vocab_size  # a worker that does not know it, but draws nonsense
                elif slot.params.logprobs >= 0:
                    logprobs.append(RowLogprobs(row, False, end, tuple(map(_entry, tokens))))
                drawn += tokens
                counts.append(len(tokens))
        packed = ints(counts) if plan.num_draft or self.step % 3 == 0 else b""  # both ways to encode one each
        return StepResult(self.epoch, self.step, ints(drawn), packed, tuple(bad), (), tuple(logprobs), lost)

    def _span(self, number: int, length: int, num_draft: int, samples: int) -> tuple[Slot, int, int]:
        """The slot of a row and the positions start..end-1 that it runs, without its drafts."""
        demand(number in self.slots, f"row of empty slot {number}")
        slot = self.slots[number]
        start, end = slot.computed, slot.computed + length - num_draft
        if not start < end <= len(slot.tokens):
            raise Broken(f"{slot.name}: row {start}..{end} of {len(slot.tokens)}")
        if samples != (end == len(slot.tokens)):
            raise Broken(f"{slot.name}: samples={samples} at {end}/{len(slot.tokens)}")
        if samples and end + num_draft >= self.facts.max_model_len:
            raise Broken(f"{slot.name}: token beyond the context length")
        demand(samples or not num_draft, f"{slot.name}: drafts behind a chunk of the prompt")
        self.memory.check_borrowed(slot)
        return slot, start, end

    def _store_and_read(self, spans: list[tuple[Slot, int, int]], rowless: set[int]) -> list[bool]:
        """All rows store their cells before any row reads. Returns which rows are finite: what reads others is not."""
        finite = [row not in rowless and not self.is_bad(*slot.name, end) for row, (slot, _, end) in enumerate(spans)]
        for (slot, start, end), is_finite in zip(spans, finite, strict=True):
            self.memory.write(slot, start, end, is_finite)
        while True:
            found = [
                row for row, (slot, start, _) in enumerate(spans) if finite[row] and not self.memory.read(slot, start)
            ]
            for row in found:
                finite[row] = False
                self.memory.write(*spans[row], finite=False)
            if not found:
                return finite

    def _verify(self, slot: Slot, num_draft: int, finite: bool) -> list[int]:
        """Draw a token, and one behind each draft that is accepted. The cells of refused drafts are left as they are,
        with the content of other tokens."""
        tokens = [self._draw(slot, finite)]
        num_refused = num_draft - self.num_accepted(num_draft) if num_draft else 0
        for _ in range(num_draft - num_refused):
            self.memory.write(slot, slot.computed, slot.computed + 1, finite)
            slot.computed += 1
            tokens.append(self._draw(slot, finite))
        if num_refused:
            self.memory.write(slot, slot.computed, slot.computed + num_refused, finite, of_drafts=True)
        return tokens

    def _draw(self, slot: Slot, finite: bool) -> int:
        eos, output = self.facts.eos_token_ids, len(slot.tokens) - slot.num_prompt
        mask = oracle.banned(slot.params, eos, output)
        token = oracle.draw(slot.chains[0], slot.params, slot.output_index, self.facts.vocab_size, mask)
        if not finite:
            token = (token + 1) % self.facts.vocab_size
        slot.tokens.append(token)
        slot.extend((token,))
        return token

    def _prompt_logprobs(self, row: int, slot: Slot, start: int, end: int) -> list[RowLogprobs]:
        """The rows' logits at positions start..end-1 price the tokens start+1..end, as far as they are prompt."""
        tokens = slot.tokens[start + 1 : min(end + 1, slot.num_prompt)]
        return [RowLogprobs(row, True, start + 1, tuple(_entry(token) for token in tokens))] if tokens else []


def _entry(token: int) -> PositionLogprobs:
    return PositionLogprobs(token_id=token, logprob=-1.0, rank=1)
