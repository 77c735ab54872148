"""The schedule by which attention bodies for GPUs share out a step: prefix sums over its rows, filled on the device.

A prefix sum is all a body needs: any tile's row is found in it by bisection, so the tiles can be dealt out evenly
among a fixed number of programs, whatever the lengths. Shape legend: R rows.
"""

from dataclasses import dataclass

import torch

from quire.kernels.attention.window import Window, oldest_seen, window_size
from quire.kernels.checks import check_tensor
from quire.kernels.dispatch import Operation

QUERY_ROWS_PER_TILE = 128
"""Rows of a query tile: the query heads of a key-value head, of as many tokens as fit."""
KEYS_PER_TILE = 64
"""Positions of a key tile."""


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """The tiles of each row, as prefix sums, for one window; a row of padding has none."""

    prefill_tiles: torch.Tensor
    """int32 [R + 1]: prefix sum of the query tiles of rows that run several tokens"""
    decode_tiles: torch.Tensor
    """int32 [R + 1]: prefix sum of the key tiles that a row of one token sees, wholly or in part"""


def fill_tile_schedule_reference(
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    window: Window | None,
    tokens_per_tile: int,
    keys_per_tile: int,
    out: TileSchedule,
) -> None:
    """Fill `out` from seq_lens int32 [R] and query_starts int32 [R + 1].

    Tiles of queries are counted from the row's first token of the step, tiles of keys from position 0.
    """
    query_lens = query_starts.diff()
    lengths = seq_lens.long()
    oldest = oldest_seen((lengths - 1).clamp(min=0), window)
    query_tiles = (query_lens + tokens_per_tile - 1) // tokens_per_tile
    key_tiles = (lengths + keys_per_tile - 1) // keys_per_tile - oldest // keys_per_tile
    for tiles, counts in (
        (out.prefill_tiles, query_tiles.where(query_lens > 1, 0)),
        (out.decode_tiles, key_tiles.where(query_lens == 1, 0)),
    ):
        tiles[0] = 0
        tiles[1:] = counts.cumsum(0)


def _check(
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    window: Window | None,
    tokens_per_tile: int,
    keys_per_tile: int,
    out: TileSchedule,
) -> None:
    check_tensor("seq_lens", seq_lens, (None,), (torch.int32,), seq_lens.device)
    starts = {
        "query_starts": query_starts,
        "out.prefill_tiles": out.prefill_tiles,
        "out.decode_tiles": out.decode_tiles,
    }
    for name, tensor in starts.items():
        check_tensor(name, tensor, (seq_lens.shape[0] + 1,), (torch.int32,), seq_lens.device)
    for name, tensor in {"seq_lens": seq_lens, **starts}.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor, got stride {tensor.stride()}")
    for name, size in {"tokens_per_tile": tokens_per_tile, "keys_per_tile": keys_per_tile}.items():
        if size < 1:
            raise ValueError(f"{name}: expected at least 1, got {size}")
    if window is not None and window_size(window) < 1:
        raise ValueError(f"window: expected at least 1 position, or None for no window, got {window}")


fill_tile_schedule = Operation(
    fill_tile_schedule_reference, _check, {"cuda": "quire.kernels.gpu.attention.tile_schedule:fill_tile_schedule"}
)


def tile_shape(device_type: str, num_groups: int) -> tuple[int, int] | None:
    """Query tokens and keys of a tile, as `fill_tile_schedule` counts them.

    None where attention reads the host's lengths and needs no schedule. `num_groups`: query heads per key-value head.
    """
    return (tokens_per_tile(num_groups), KEYS_PER_TILE) if fill_tile_schedule.has_form(device_type) else None


def tokens_per_tile(num_groups: int) -> int:
    """Tokens whose `num_groups` query heads fill a query tile."""
    return max(1, QUERY_ROWS_PER_TILE // num_groups)
