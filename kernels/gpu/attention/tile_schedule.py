"""Shares out a step among the attention bodies: one program sums up the rows' tiles, before the first layer.

Floor: 8 bytes read and 8 written for each row, a few integer operations each: one launch, a few microseconds.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.attention.tile_schedule import TileSchedule
from quire.kernels.attention.window import Chunk, Window, window_size

CHUNK = tl.constexpr(512)
"""Rows looked at together."""
LEAST_TILES = tl.constexpr(2)
"""Key tiles below which a program's stretch does not fall."""
EVERYTHING = 2**31 - 1
"""A window that hides nothing: positions fit 31 bits."""


@triton.jit
def oldest_seen(position, window, CHUNKED: tl.constexpr) -> tl.tensor:
    """The oldest position that a token at `position` sees, below 0 where its window is not full.

    CHUNKED: the window is a `Chunk`.
    """
    if CHUNKED:
        oldest = position // window * window
    else:
        oldest = position - window + 1
    return oldest


@triton.jit
def row_of_tile(tiles, num_rows, tile) -> tl.tensor:
    """The first row whose tiles end behind `tile`: the one that holds it. `tiles` [R + 1] is a prefix sum.

    Counts instead of bisecting: one read of the whole sum costs less than ten that wait for each other.
    """
    row = 0
    for start in range(0, num_rows, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        ends = tl.load(tiles + 1 + rows, mask=rows < num_rows, other=0x7FFFFFFF)
        row += tl.sum((ends <= tile).to(tl.int32))
    return row


@triton.jit
def tiles_of_program(total, programs) -> tl.tensor:
    """Length of the stretch each of `programs` programs takes of `total` tiles. Short ones would only cost merges."""
    return tl.maximum(tl.cdiv(total, programs), LEAST_TILES)


@triton.jit(do_not_specialize=["num_rows", "window"])
def fill_tile_schedule_kernel(
    seq_lens,
    query_starts,
    prefill_tiles,
    decode_tiles,
    num_rows,
    window,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """Grid (1): both prefix sums. TOKENS, KEYS: of a query tile and of a key tile."""
    tl.store(prefill_tiles, 0)
    tl.store(decode_tiles, 0)
    prefill_sum = 0
    decode_sum = 0
    for start in range(0, num_rows, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        real = rows < num_rows
        seq_len = tl.load(seq_lens + rows, mask=real, other=0)
        first_token = tl.load(query_starts + rows, mask=real, other=0)
        query_len = tl.load(query_starts + rows + 1, mask=real, other=0) - first_token
        oldest = tl.maximum(oldest_seen(seq_len - 1, window, CHUNKED), 0)
        key_tiles = tl.where(query_len == 1, (seq_len + KEYS - 1) // KEYS - oldest // KEYS, 0)
        query_tiles = tl.where(query_len > 1, (query_len + TOKENS - 1) // TOKENS, 0)
        tl.store(prefill_tiles + 1 + rows, prefill_sum + tl.cumsum(query_tiles), mask=real)
        tl.store(decode_tiles + 1 + rows, decode_sum + tl.cumsum(key_tiles), mask=real)
        prefill_sum += tl.sum(query_tiles)
        decode_sum += tl.sum(key_tiles)


def size_of(window: Window | None) -> int:
    """The size of a window as the kernels take it."""
    return EVERYTHING if window is None else min(window_size(window), EVERYTHING)


def fill_tile_schedule(
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    window: Window | None,
    tokens_per_tile: int,
    keys_per_tile: int,
    out: TileSchedule,
) -> None:
    """See `quire.kernels.attention.tile_schedule`."""
    fill_tile_schedule_kernel[(1,)](
        seq_lens,
        query_starts,
        out.prefill_tiles,
        out.decode_tiles,
        seq_lens.shape[0],
        size_of(window),
        TOKENS=tokens_per_tile,
        KEYS=keys_per_tile,
        CHUNKED=isinstance(window, Chunk),
        num_warps=4,
    )
