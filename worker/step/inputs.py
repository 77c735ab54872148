"""The inputs of a step, in buffers that live as long as the worker: a captured graph finds every step's at one address.

Shape legend: T tokens, R rows, both with padding, P axes of positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, tile_shape
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs
from quire.worker.batch import ForwardBatch
from quire.worker.memory.kv_cache import LayerKV
from quire.worker.tables.slot_table import SlotTable


class Bucket(NamedTuple):
    """Size of a step's buffers: what it runs, or what that is padded to."""

    num_tokens: int
    num_rows: int
    mixed: bool = False
    """True when a row may run more than one token: attention then runs its body for prompts too."""


class Inputs:
    """Filled on the device from the slots' tables and the rows of the upload."""

    def __init__(
        self, slot_table: SlotTable, rows: torch.Tensor, max_tokens: int, layers: Sequence[LayerKV], num_axes: int
    ) -> None:
        """`rows` int32 [3, max rows] of `Upload`; the model's layers, with equally many queries for each head; the axes
        of its positions.
        """
        device, max_rows = rows.device, rows.shape[1]
        self._slot_table = slot_table
        self._rows = rows
        self._step = StepInputs(
            torch.zeros(max_tokens, dtype=torch.int64, device=device),
            torch.zeros((num_axes, max_tokens), dtype=torch.int64, device=device),
            torch.zeros(max_tokens, dtype=torch.int64, device=device),
            torch.zeros(max_rows + 1, dtype=torch.int32, device=device),
            torch.zeros(max_rows, dtype=torch.int32, device=device),
            torch.zeros(max_rows, dtype=torch.int32, device=device),
        )
        self._tiles = tile_shape(device.type, layers[0].queries_per_head) if layers else None
        self._schedules: dict[int | None, TileSchedule] = {}
        if self._tiles is not None:
            for window in dict.fromkeys(layer.window for layer in layers):
                # apart, so that each begins where wide loads may
                sums = (torch.zeros(max_rows + 1, dtype=torch.int32, device=device) for _ in range(2))
                self._schedules[window] = TileSchedule(*sums)

    def fill(self, bucket: Bucket) -> None:
        """Queue the work that makes the inputs out of the tables; nothing waits."""
        step, rows = self._views(bucket), bucket.num_rows
        prepare_inputs(
            self._slot_table.tokens,
            self._slot_table.known,
            self._slot_table.block_tables,
            self._rows[:, :rows],
            self._slot_table.block_size,
            step,
        )
        if self._tiles is not None:
            for window, schedule in self._schedules_of(rows).items():
                fill_tile_schedule(step.seq_lens, step.query_starts, window, *self._tiles, schedule)

    def batch(self, bucket: Bucket, query_lens: tuple[int, ...], seq_lens: tuple[int, ...]) -> ForwardBatch:
        """The batch that the layers read. The lengths are the host's, one for each row of the bucket."""
        step = self._views(bucket)
        return ForwardBatch(
            step.token_ids,
            step.positions,
            step.slot_mapping,
            PagedBatch(
                block_tables=self._slot_table.block_tables,
                slots=step.slots,
                seq_lens=step.seq_lens,
                query_starts=step.query_starts,
                num_decodes=num_leading_ones(query_lens),
                query_lens_host=query_lens,
                seq_lens_host=seq_lens,
                schedules=self._schedules_of(bucket.num_rows),
            ),
        )

    def _views(self, bucket: Bucket) -> StepInputs:
        tokens, rows, _ = bucket
        ids, positions, mapping, starts, lengths, slots = self._step
        return StepInputs(
            ids[:tokens], positions[:, :tokens], mapping[:tokens], starts[: rows + 1], lengths[:rows], slots[:rows]
        )

    def _schedules_of(self, num_rows: int) -> dict[int | None, TileSchedule]:
        end = num_rows + 1
        return {
            window: TileSchedule(schedule.prefill_tiles[:end], schedule.decode_tiles[:end])
            for window, schedule in self._schedules.items()
        }


def num_leading_ones(counts: tuple[int, ...]) -> int:
    """Rows in front that run one token each."""
    return next((row for row, count in enumerate(counts) if count != 1), len(counts))
