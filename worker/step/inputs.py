"""The inputs of a step, in buffers that live as long as the worker: a captured graph finds every step's at one address.

Shape legend: T tokens, R rows, both with padding, P axes of positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, tile_shape
from quire.kernels.attention.window import Window
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs
from quire.worker.batch import ForwardBatch, GroupBatch
from quire.worker.memory.kv_layout import KVGroup
from quire.worker.tables.slot_table import SlotTable


class Bucket(NamedTuple):
    """Size of a step's buffers: what it runs, or what that is padded to."""

    num_tokens: int
    num_rows: int
    mixed: bool = False
    """True when a row may run more than one token: attention then runs its body for prompts too."""


class GroupInputs:
    """The inputs that are the layers' of one KV group: where they write, and the tiles of attention."""

    def __init__(self, group: KVGroup, block_tables: torch.Tensor, max_tokens: int, max_rows: int) -> None:
        device = block_tables.device
        self.block_size = group.block_size
        self.block_tables = block_tables
        self.slot_mapping = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._tiles = tile_shape(device.type, group.layers[0].queries_per_head) if group.layers else None
        self._schedules: dict[Window | None, TileSchedule] = {}
        """By window of its layers; empty where attention needs none."""
        if self._tiles is not None:
            for window in group.seen:
                # apart, so that each begins where wide loads may
                sums = (torch.zeros(max_rows + 1, dtype=torch.int32, device=device) for _ in range(2))
                self._schedules[window] = TileSchedule(*sums)

    def fill_schedules(self, step: StepInputs) -> None:
        """Queue the work that makes the schedules of these rows."""
        if self._tiles is not None:
            for window, schedule in self.schedules(len(step.slots)).items():
                fill_tile_schedule(step.seq_lens, step.query_starts, window, *self._tiles, schedule)

    def schedules(self, num_rows: int) -> dict[Window | None, TileSchedule]:
        """The schedules of so many rows, by window."""
        end = num_rows + 1
        return {
            window: TileSchedule(schedule.prefill_tiles[:end], schedule.decode_tiles[:end])
            for window, schedule in self._schedules.items()
        }


class Inputs:
    """Filled on the device from the slots' tables and the rows of the upload."""

    def __init__(
        self, slot_table: SlotTable, rows: torch.Tensor, max_tokens: int, groups: Sequence[KVGroup], num_axes: int
    ) -> None:
        """`rows` int32 [3, max rows] of `Upload`; `groups` of the cache, one for each of the slots' block tables; the
        axes of the model's positions.
        """
        device, max_rows = rows.device, rows.shape[1]
        self._slot_table = slot_table
        self._rows = rows
        self._groups = [
            GroupInputs(group, block_tables, max_tokens, max_rows)
            for group, block_tables in zip(groups, slot_table.block_tables, strict=True)
        ]
        self._token_ids = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._positions = torch.zeros((num_axes, max_tokens), dtype=torch.int64, device=device)
        num_slots = slot_table.known.shape[0]
        self.shifts = torch.zeros(num_slots, dtype=torch.int64, device=device) if num_axes > 1 else None
        """int64 [N]: position less index of the tokens that a slot runs; None: positions have one axis and no shift."""
        self._query_starts = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._slots = torch.zeros(max_rows, dtype=torch.int32, device=device)

    def fill(self, bucket: Bucket) -> None:
        """Queue the work that makes the inputs out of the tables; nothing waits."""
        rows = self._rows[:, : bucket.num_rows]
        for group in self._groups:  # each writes its own slot mapping, and the rest again alike
            step = self._views(bucket, group)
            slots = self._slot_table
            prepare_inputs(slots.tokens, slots.known, group.block_tables, rows, group.block_size, step, self.shifts)
            group.fill_schedules(step)

    def place(self, begin: int, positions: torch.Tensor) -> None:
        """Queue positions int64 [P, n] of the step's tokens from `begin` on, in place of what `fill` made."""
        self._positions[:, begin : begin + positions.shape[1]].copy_(positions)

    def batch(
        self,
        bucket: Bucket,
        query_lens: tuple[int, ...],
        seq_lens: tuple[int, ...],
        token_types: torch.Tensor | None = None,
        last_visible: torch.Tensor | None = None,
    ) -> ForwardBatch:
        """The batch that the layers read. The lengths are the host's, one for each row of the bucket; the types int64
        [T]; `last_visible` as in `PagedBatch`."""
        num_decodes = num_leading_ones(query_lens)
        groups = []
        for group in self._groups:
            step = self._views(bucket, group)
            rows = PagedBatch(
                block_tables=group.block_tables,
                slots=step.slots,
                seq_lens=step.seq_lens,
                query_starts=step.query_starts,
                num_decodes=num_decodes,
                query_lens_host=query_lens,
                seq_lens_host=seq_lens,
                schedules=group.schedules(bucket.num_rows),
                last_visible=last_visible,
            )
            groups.append(GroupBatch(step.slot_mapping, rows))
        token_ids, positions = self._token_ids[: bucket.num_tokens], self._positions[:, : bucket.num_tokens]
        return ForwardBatch(token_ids, positions, tuple(groups), token_types=token_types)

    def _views(self, bucket: Bucket, group: GroupInputs) -> StepInputs:
        tokens, rows, _ = bucket
        return StepInputs(
            self._token_ids[:tokens],
            self._positions[:, :tokens],
            group.slot_mapping[:tokens],
            self._query_starts[: rows + 1],
            self._seq_lens[:rows],
            self._slots[:rows],
        )


def num_leading_ones(counts: tuple[int, ...]) -> int:
    """Rows in front that run one token each."""
    return next((row for row, count in enumerate(counts) if count != 1), len(counts))
