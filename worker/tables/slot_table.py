"""The worker's view of every running sequence, keyed by slot and kept by plan deltas.

The device holds the token table (prompt and generated tokens; the sampler writes there, so a decode row finds its last
token without the host), how many tokens of it are known, and the block tables. How many drafts of a step in flight are
accepted only the device knows, so the host's counts are upper bounds until `confirm`. Their difference, how many known
tokens are not computed yet, is exact: an accepted draft is known and computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.kernels.sampling.append_tokens import append_tokens
from quire.proto.messages.params import ParameterError, check_token_ids
from quire.proto.messages.plans import NO_BLOCK, Admit, StepPlan
from quire.proto.transport.wire import Int32, WireError, unpack
from quire.worker.device.host_memory import zeros
from quire.worker.tables.sampling_table import Columns, SamplingTable
from quire.worker.tables.token_types import TokenTypes
from quire.worker.tables.upload import Upload

Int64 = npt.NDArray[np.int64]


class PlanError(ValueError):
    """The plan does not fit what this worker knows. The group must stop: its ranks may no longer agree."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one step, checked. R rows, S of them sample; `computed` and `known` are from before the step, upper
    bounds both where drafts are in flight."""

    slots: Int64
    counts: Int64
    """Tokens each row runs, drafts included: [R]"""
    computed: Int64
    sampling: Int64
    """Indices of the rows that sample a token: [S]"""
    known: Int64
    """Tokens of each row's sequence, which is the position of the one it samples: [R]"""
    num_tokens: int
    num_draft: Int64 | None
    """Drafts among `counts`: [R]; None: no row has any."""
    admissions: Int64 | None
    """Admissions to each row's slot so far, where there are drafts: [R]"""

    @property
    def left(self) -> Int64:
        """Known tokens that are not computed yet: [R]"""
        return self.known - self.computed


@dataclass(frozen=True, slots=True)
class Released:
    slot: int
    num_tokens: int
    num_blocks: list[int]
    """By KV group."""


@dataclass(frozen=True, slots=True)
class Admitted:
    slot: int
    tokens: torch.Tensor
    tables: list[torch.Tensor]
    """Blocks by KV group."""
    columns: Columns


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes a plan makes in the device's tables; their tensors mean something once the upload is queued."""

    released: list[Released]
    admitted: list[Admitted]
    appended: list[torch.Tensor | None]
    """By KV group, [3, n]: slots, indices in their tables, blocks."""


class SlotTable:
    """Sizes are fixed at construction. Table rows are written whole, up to the farthest entry ever used."""

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        num_blocks: int,
        block_sizes: Sequence[int],
        sampling: SamplingTable,
        device: torch.device,
        vocab_size: int,
    ) -> None:
        self.max_model_len = max_model_len
        self.block_sizes = block_sizes
        """Tokens of a block in each KV group."""
        self.sampling = sampling
        self._num_slots = num_slots
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        # one more token than the model can run: the last one sampled is stored, never run
        self.tokens = zeros((num_slots, max_model_len + 1), torch.int32, device)
        self.known = zeros((num_slots,), torch.int64, device)
        """Known tokens of each slot, on the device; means nothing where none is admitted."""
        self.block_tables = [zeros((num_slots, -(-max_model_len // size)), torch.int32, device) for size in block_sizes]
        """By KV group."""
        self.live = np.zeros(num_slots, dtype=np.bool_)
        self.num_tokens = np.zeros(num_slots, dtype=np.int64)
        """Known tokens, those sampled by steps in flight and all their drafts included."""
        self.num_computed = np.zeros(num_slots, dtype=np.int64)
        self.num_unconfirmed = np.zeros(num_slots, dtype=np.int64)
        """Drafts in flight: so many of both counts may be taken back."""
        self.num_admissions = np.zeros(num_slots, dtype=np.int64)
        self.num_prompt = np.zeros(num_slots, dtype=np.int64)
        self.token_types = TokenTypes(num_slots)
        self.num_table_blocks = [np.zeros(num_slots, dtype=np.int64) for _ in block_sizes]
        """By KV group."""

    def apply(self, plan: StepPlan, upload: Upload) -> Changes:
        """Releases, admits, appended blocks; `write` then changes the device's tables, once the upload is queued.

        Raises `PlanError`; the tables mean nothing then.
        """
        try:
            releases, appends = unpack(plan.releases), [unpack(column, 3) for column in plan.appends]
        except WireError as error:
            raise PlanError(f"plan {plan.step}: {error}") from error
        released = [self._release(slot) for slot in releases.tolist()]
        admitted = [self._admit(admit, upload) for admit in plan.admits]
        _require(len(appends) in (0, len(self.block_sizes)), "appends", f"are of {len(self.block_sizes)} groups")
        appended = [self._append(group, column, upload) for group, column in enumerate(appends)]
        return Changes(released, admitted, appended)

    def write(self, changes: Changes) -> None:
        """Queue what `apply` decided."""
        for gone in changes.released:
            self.tokens[gone.slot, : gone.num_tokens] = 0
            for table, num_blocks in zip(self.block_tables, gone.num_blocks, strict=True):
                table[gone.slot, :num_blocks] = 0
            self.sampling.clear(gone.slot)
        for new in changes.admitted:
            self.tokens[new.slot, : new.tokens.shape[0]] = new.tokens
            self.known[new.slot].fill_(new.tokens.shape[0])  # assigned, it would be a copy that is waited for
            for table, blocks in zip(self.block_tables, new.tables, strict=True):
                table[new.slot, : blocks.shape[0]] = blocks
            self.sampling.write(new.slot, new.columns)
        for table, appended in zip(self.block_tables, changes.appended, strict=bool(changes.appended)):
            if appended is not None:
                slots, indices, blocks = appended
                table[slots, indices] = blocks

    def rows(self, plan: StepPlan, max_tokens: int) -> StepRows:
        """The rows a plan runs. Raises `PlanError` for any row that the tables cannot serve."""
        try:
            slots, counts = (unpack(column).astype(np.int64) for column in (plan.slots, plan.num_tokens))
            num_draft = unpack(plan.num_draft).astype(np.int64) if plan.num_draft else None
        except WireError as error:
            raise PlanError(f"plan {plan.step}: {error}") from error
        samples = np.frombuffer(plan.samples, dtype=np.uint8)
        if not len(slots) == len(counts) == len(samples):
            raise PlanError(f"columns of {len(slots)} slots, {len(counts)} counts and {len(samples)} samples")
        _require(not plan.samples.translate(None, b"\0\1"), "samples", "is 0 or 1 for each row")
        within = bool(slots.min(initial=0) >= 0 and slots.max(initial=0) < self._num_slots)
        _require(within, "slots", f"are in [0, {self._num_slots})")
        _require(bool(self.live[slots].all()), "slots", "were admitted before")
        _require(np.bincount(slots, minlength=1).max(initial=0) <= 1, "slots", "run once in a step")
        _require(bool(counts.min(initial=1) >= 1), "num_tokens", "is at least 1 for each row")
        num_tokens = int(counts.sum())
        _require(num_tokens <= max_tokens, "num_tokens", f"is {max_tokens} at most in all")
        computed, known = self.num_computed[slots], self.num_tokens[slots]
        ends = computed + counts
        own_ends = ends if num_draft is None else ends - _checked_drafts(num_draft, samples)
        _require(bool((own_ends <= known).all()), "num_tokens", "stays in known tokens")
        _require(bool(((own_ends == known) == samples).all()), "samples", "is 1 where known tokens end")
        least = ends - self.num_unconfirmed[slots]
        for held, size in zip(self.num_table_blocks, self.block_sizes, strict=True):
            room = np.minimum(held[slots] * size, self.max_model_len)
            _require(bool((least <= room).all()), "num_tokens", "fits the context, and the blocks of its tables")
        admissions = None if num_draft is None else self.num_admissions[slots]
        return StepRows(slots, counts, computed, np.flatnonzero(samples), known, num_tokens, num_draft, admissions)

    def advance(self, rows: StepRows) -> None:
        """Count what the step computes and samples; the sampled tokens are in flight to the token table."""
        self.num_computed[rows.slots] += rows.counts
        self.num_tokens[rows.slots[rows.sampling]] += 1
        if rows.num_draft is not None:
            self.num_tokens[rows.slots] += rows.num_draft
            self.num_unconfirmed[rows.slots] += rows.num_draft

    def confirm(self, rows: StepRows, counts: Int64) -> None:
        """The result of a step with drafts is here: the tokens that each sampling row drew, int64 [S]."""
        assert rows.num_draft is not None
        assert rows.admissions is not None
        slots, drafts = rows.slots[rows.sampling], rows.num_draft[rows.sampling]
        same = self.num_admissions[slots] == rows.admissions[rows.sampling]
        slots, drafts, refused = slots[same], drafts[same], (drafts + 1 - counts)[same]
        self.num_unconfirmed[slots] -= drafts
        self.num_computed[slots] -= refused
        self.num_tokens[slots] -= refused

    def append(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Write sampled tokens int64 [S] behind the known ones of their slots int64 [S], on the device."""
        append_tokens(self.tokens, self.known, slots, token_ids)

    def _release(self, slot: int) -> Released:
        if not (0 <= slot < self._num_slots and self.live[slot]):
            raise PlanError(f"releases: slot {slot} is not in use")
        released = Released(slot, int(self.num_tokens[slot]), [int(held[slot]) for held in self.num_table_blocks])
        self.sampling.release(slot)
        for column in (
            self.live,
            self.num_tokens,
            self.num_computed,
            self.num_unconfirmed,
            self.num_prompt,
            *self.num_table_blocks,
        ):
            column[slot] = 0
        return released

    def _admit(self, admit: Admit, upload: Upload) -> Admitted:
        slot = admit.slot
        try:
            tokens, tables = unpack(admit.tokens), [unpack(table) for table in admit.tables]
        except WireError as error:
            raise PlanError(f"admits: slot {slot}: {error}") from error
        where = f"admits: slot {slot}"
        _require(0 <= slot < self._num_slots and not self.live[slot], where, "is free")
        _require(admit.adapter == 0, where, f"runs the base model: adapter {admit.adapter} is not loaded")
        _require(0 < len(tokens) <= self.max_model_len, where, f"has 1 to {self.max_model_len} tokens")
        _require(
            bool(tokens.min() >= 0 and tokens.max() < self._vocab_size), where, f"has ids in [0, {self._vocab_size})"
        )
        _require(1 <= admit.num_prompt <= len(tokens), where, "has a prompt within its tokens")
        _require(0 <= admit.num_computed < len(tokens), where, "has a token left to compute")
        _require(admit.output_index >= 0, where, "has an output index of 0 or more")
        try:
            check_token_ids(admit.params, (), self._vocab_size)
        except ParameterError as error:
            raise PlanError(f"{where}: {error}") from error
        _require(len(tables) == len(self.block_tables), where, f"has {len(self.block_tables)} block tables")
        for group, (blocks, table) in enumerate(zip(tables, self.block_tables, strict=True)):
            if blocks.size and blocks[0] == NO_BLOCK:
                behind = int(np.argmax(blocks != NO_BLOCK))
                is_computed = behind * self.block_sizes[group] <= admit.num_computed
                _require(is_computed, where, "has the blocks of what it computes")
                tables[group] = blocks = np.where(np.arange(len(blocks)) < behind, np.int32(0), blocks)
            self._check_blocks(blocks, where)
            _require(len(blocks) <= table.shape[1], where, f"has {table.shape[1]} blocks at most")
        _require(0 <= admit.second_text < len(tokens), where, "has a second text within its tokens")
        self.token_types.admit(slot, admit.second_text)
        self.live[slot] = True
        self.num_admissions[slot] += 1
        self.num_tokens[slot] = len(tokens)
        self.num_computed[slot] = admit.num_computed
        self.num_prompt[slot] = admit.num_prompt
        for held, blocks in zip(self.num_table_blocks, tables, strict=True):
            held[slot] = len(blocks)
        columns = self.sampling.admit(slot, admit.params, admit.output_index, upload)
        return Admitted(slot, upload.put(tokens), [upload.put(blocks) for blocks in tables], columns)

    def _append(self, group: int, appends: Int32, upload: Upload) -> torch.Tensor | None:
        """[3, n]: slots, indices in their tables, blocks."""
        if not appends.size:
            return None
        self._check_blocks(appends[:, 2], "appends")
        held, most = self.num_table_blocks[group], self.block_tables[group].shape[1]
        for slot, index, _ in appends.tolist():
            if not (0 <= slot < self._num_slots and self.live.item(slot)):
                raise PlanError(f"appends: slot {slot} is not in use")
            blocks = held.item(slot)
            if not 0 <= index <= blocks or index >= most:
                raise PlanError(f"appends: slot {slot} has {blocks} blocks, not yet {index}")
            if index == blocks:
                held[slot] = index + 1
        return upload.put(np.ascontiguousarray(appends.T))

    def _check_blocks(self, blocks: Int32, where: str) -> None:
        if blocks.size and not (blocks.min() >= 0 and blocks.max() < self._num_blocks):
            raise PlanError(f"{where}: a block is outside [0, {self._num_blocks})")


def _checked_drafts(num_draft: Int64, samples: npt.NDArray[np.uint8]) -> Int64:
    _require(len(num_draft) == len(samples), "num_draft", "has one entry for each row")
    _require(bool((num_draft >= 0).all()), "num_draft", "is 0 or more")
    _require(not num_draft[samples == 0].any(), "num_draft", "is 0 where nothing is drawn")
    return num_draft


def _require(holds: bool, what: str, rule: str) -> None:
    if not holds:
        raise PlanError(f"{what}: broken rule: {rule}")
