"""The worker's view of every running sequence, keyed by slot and kept by plan deltas.

The device holds the token table (prompt and generated tokens; the sampler writes there, so a decode row finds its last
token without the host) and the block tables. Counts are known from the plans alone, so the host keeps them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.proto.messages.params import ParameterError, check_token_ids
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import Int32, WireError, unpack
from quire.worker.device.host_memory import zeros
from quire.worker.tables.sampling_table import Columns, SamplingTable
from quire.worker.tables.upload import Upload

Int64 = npt.NDArray[np.int64]


class PlanError(ValueError):
    """The plan does not fit what this worker knows. The group must stop: its ranks may no longer agree."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one step, checked. R rows, S of them sample; `computed` and `known` are from before the step."""

    slots: Int64
    counts: Int64
    """Tokens each row runs: [R]"""
    computed: Int64
    sampling: Int64
    """Indices of the rows that sample a token: [S]"""
    known: Int64
    """Tokens of each row's sequence, which is the position of the one it samples: [R]"""

    @property
    def num_tokens(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class Released:
    slot: int
    num_tokens: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Admitted:
    slot: int
    tokens: torch.Tensor
    blocks: torch.Tensor
    columns: Columns


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes a plan makes in the device's tables; their tensors mean something once the upload is queued."""

    released: list[Released]
    admitted: list[Admitted]
    appended: torch.Tensor | None


class SlotTable:
    """Sizes are fixed at construction. Table rows are written whole, up to the farthest entry ever used."""

    def __init__(
        self,
        num_slots: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int,
        sampling: SamplingTable,
        device: torch.device,
        vocab_size: int,
    ) -> None:
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.sampling = sampling
        self._num_slots = num_slots
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        max_blocks = -(-max_model_len // block_size)
        # one more token than the model can run: the last one sampled is stored, never run
        self.tokens = zeros((num_slots, max_model_len + 1), torch.int32, device)
        self.block_tables = zeros((num_slots, max_blocks), torch.int32, device)
        self.live = np.zeros(num_slots, dtype=np.bool_)
        self.num_tokens = np.zeros(num_slots, dtype=np.int64)
        """Known tokens, those sampled by steps in flight included."""
        self.num_computed = np.zeros(num_slots, dtype=np.int64)
        self.num_prompt = np.zeros(num_slots, dtype=np.int64)
        self.num_table_blocks = np.zeros(num_slots, dtype=np.int64)

    def apply(self, plan: StepPlan, upload: Upload) -> Changes:
        """Releases, admits, appended blocks; `write` then changes the device's tables, once the upload is queued.

        Raises `PlanError`; the tables mean nothing then.
        """
        try:
            releases, appends = unpack(plan.releases), unpack(plan.appends, 3)
        except WireError as error:
            raise PlanError(f"plan {plan.step}: {error}") from error
        released = [self._release(slot) for slot in releases.tolist()]
        admitted = [self._admit(admit, upload) for admit in plan.admits]
        return Changes(released, admitted, self._append(appends, upload))

    def write(self, changes: Changes) -> None:
        """Queue what `apply` decided."""
        for gone in changes.released:
            self.tokens[gone.slot, : gone.num_tokens] = 0
            self.block_tables[gone.slot, : gone.num_blocks] = 0
            self.sampling.clear(gone.slot)
        for new in changes.admitted:
            self.tokens[new.slot, : new.tokens.shape[0]] = new.tokens
            self.block_tables[new.slot, : new.blocks.shape[0]] = new.blocks
            self.sampling.write(new.slot, new.columns)
        if changes.appended is not None:
            slots, indices, blocks = changes.appended
            self.block_tables[slots, indices] = blocks

    def rows(self, plan: StepPlan, max_tokens: int) -> StepRows:
        """The rows a plan runs. Raises `PlanError` for any row that the tables cannot serve."""
        try:
            slots, counts = (unpack(column).astype(np.int64) for column in (plan.slots, plan.num_tokens))
        except WireError as error:
            raise PlanError(f"plan {plan.step}: {error}") from error
        samples = np.frombuffer(plan.samples, dtype=np.uint8)
        if not len(slots) == len(counts) == len(samples):
            raise PlanError(f"columns of {len(slots)} slots, {len(counts)} counts and {len(samples)} samples")
        _require(bool((samples <= 1).all()), "samples", "is 0 or 1 for each row")
        _require(bool(((slots >= 0) & (slots < self._num_slots)).all()), "slots", f"are in [0, {self._num_slots})")
        _require(bool(self.live[slots].all()), "slots", "were admitted before")
        _require(np.bincount(slots, minlength=1).max(initial=0) <= 1, "slots", "run once in a step")
        _require(bool((counts >= 1).all()), "num_tokens", "is at least 1 for each row")
        _require(int(counts.sum()) <= max_tokens, "num_tokens", f"is {max_tokens} at most in all")
        computed, known = self.num_computed[slots], self.num_tokens[slots]
        ends = computed + counts
        _require(bool((ends <= np.minimum(known, self.max_model_len)).all()), "num_tokens", "stays in known tokens")
        _require(bool(((ends == known) == (samples == 1)).all()), "samples", "is 1 where known tokens end")
        enough = self.num_table_blocks[slots] * self.block_size >= ends
        _require(bool(enough.all()), "num_tokens", "fits the blocks of its table")
        return StepRows(slots, counts, computed, np.flatnonzero(samples).astype(np.int64), known)

    def advance(self, rows: StepRows) -> None:
        """Count what the step computes and samples; the sampled tokens are in flight to the token table."""
        self.num_computed[rows.slots] += rows.counts
        self.num_tokens[rows.slots[rows.sampling]] += 1

    def store(self, slots: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Write sampled tokens [S] into the token table."""
        self.tokens[slots, positions] = token_ids.int()

    def _release(self, slot: int) -> Released:
        if not (0 <= slot < self._num_slots and self.live[slot]):
            raise PlanError(f"releases: slot {slot} is not in use")
        released = Released(slot, int(self.num_tokens[slot]), int(self.num_table_blocks[slot]))
        self.sampling.release(slot)
        for column in (self.live, self.num_tokens, self.num_computed, self.num_prompt, self.num_table_blocks):
            column[slot] = 0
        return released

    def _admit(self, admit: Admit, upload: Upload) -> Admitted:
        slot = admit.slot
        try:
            tokens, blocks = unpack(admit.tokens), unpack(admit.blocks)
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
        self._check_blocks(blocks, where)
        _require(len(blocks) <= self.block_tables.shape[1], where, f"has {self.block_tables.shape[1]} blocks at most")
        self.live[slot] = True
        self.num_tokens[slot] = len(tokens)
        self.num_computed[slot] = admit.num_computed
        self.num_prompt[slot] = admit.num_prompt
        self.num_table_blocks[slot] = len(blocks)
        columns = self.sampling.admit(slot, admit.params, admit.output_index, upload)
        return Admitted(slot, upload.put(tokens), upload.put(blocks), columns)

    def _append(self, appends: Int32, upload: Upload) -> torch.Tensor | None:
        """[3, n]: slots, indices in their tables, blocks."""
        if not appends.size:
            return None
        self._check_blocks(appends[:, 2], "appends")
        held, most = self.num_table_blocks, self.block_tables.shape[1]
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


def _require(holds: bool, what: str, rule: str) -> None:
    if not holds:
        raise PlanError(f"{what}: broken rule: {rule}")
