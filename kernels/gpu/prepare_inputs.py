"""Builds the inputs of one step: a program for each stretch of each row's tokens, and of the padding behind them.

Every element of the result has one writer, whatever the lengths: row r's first program writes the row's own columns,
and the padding is one row more. A program finds where its row begins by adding up the counts of those before it.

Floor: 8 bytes read and 24 written for each token, 20 read and 12 written for each row, 4 * R * R read from the cache
for the sums; a few integer operations each: one launch, a few microseconds.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.prepare_inputs import StepInputs

TILE = 512
"""Tokens of a program."""
CHUNK = tl.constexpr(256)
"""Rows whose counts are added up together."""


@triton.jit
def _sum_before(counts, row):
    """Sum of `counts[:row]`."""
    total = 0
    for first in range(0, row, CHUNK):
        others = first + tl.arange(0, CHUNK)
        total += tl.sum(tl.load(counts + others, others < row, other=0))
    return total


@triton.jit(do_not_specialize=["row_stride", "axis_stride", "num_rows", "num_tokens", "slot_tokens", "slot_blocks"])
def prepare_inputs_kernel(
    tokens,
    known,
    block_tables,
    rows,
    token_ids,
    positions,
    slot_mapping,
    query_starts,
    seq_lens,
    slots,
    shifts,
    row_stride,
    axis_stride,
    num_rows,
    num_tokens,
    slot_tokens,
    slot_blocks,
    SHIFTED: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid (R + 1, stretches of the buffers); `slot_tokens`, `slot_blocks`: what a slot holds in either table."""
    row = tl.program_id(0)
    real = row < num_rows
    slot = tl.load(rows + row, real, other=0)
    left = tl.load(rows + row_stride + row, real, other=0)
    computed = tl.load(known + slot).to(tl.int32) - left
    count = tl.load(rows + 2 * row_stride + row, real, other=num_tokens)
    first = tl.program_id(1) * TILE
    if first > 0 and first >= count:
        return
    start = _sum_before(rows + 2 * row_stride, row)
    if first == 0:
        tl.store(query_starts + row, start)
        tl.store(seq_lens + row, tl.where(count > 0, computed + count, 0), real)
        tl.store(slots + row, slot, real)
    index = first + tl.arange(0, TILE)
    inside = (index < count) & (start + index < num_tokens)
    position = tl.where(real, computed + index, 0)
    read = inside & real
    token = tl.load(tokens + slot.to(tl.int64) * slot_tokens + position, read, other=0)
    block = tl.load(block_tables + slot.to(tl.int64) * slot_blocks + position // BLOCK_SIZE, read, other=0)
    place = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(token_ids + start + index, token.to(tl.int64), inside)
    shifted = position.to(tl.int64)
    if SHIFTED:
        shifted += tl.load(shifts + slot, real, other=0)
    for axis in tl.static_range(AXES):
        tl.store(positions + axis * axis_stride + start + index, shifted, inside)
    tl.store(slot_mapping + start + index, tl.where(real, place, -1), inside)


def prepare_inputs(
    tokens: torch.Tensor,
    known: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    block_size: int,
    out: StepInputs,
    shifts: torch.Tensor | None = None,
) -> None:
    """See `quire.kernels.prepare_inputs`."""
    num_rows, num_tokens = rows.shape[1], out.token_ids.shape[0]
    prepare_inputs_kernel[(num_rows + 1, max(1, triton.cdiv(num_tokens, TILE)))](
        tokens,
        known,
        block_tables,
        rows,
        *out,
        known if shifts is None else shifts,
        rows.stride(0),
        out.positions.stride(0),
        num_rows,
        num_tokens,
        tokens.shape[1],
        block_tables.shape[1],
        SHIFTED=shifts is not None,
        AXES=out.positions.shape[0],
        BLOCK_SIZE=block_size,
        TILE=TILE,
        num_warps=4,
        num_stages=1,
    )
