"""Puts together the partial results that several programs of the decode body left of one row.

Floor: for each such row and head D float32 from each program that shared it, D elements written; a step has at most
one such row for each two programs, so this is a megabyte, out of the cache: the launch is what it costs.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.attention.tile_schedule import TileSchedule
from quire.kernels.gpu.attention.softmax import LOG2E
from quire.kernels.gpu.attention.tile_schedule import tiles_of_program
from quire.kernels.gpu.attention.tiles import MERGED_PROGRAMS


@triton.jit(do_not_specialize=["num_rows", "programs"])
def merge_splits_kernel(
    partial,
    partial_lse,
    out,
    query_starts,
    tiles,
    sinks,
    num_rows,
    programs,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid (R, H). A program's second place is for the row it begins, its first for the one it goes on with."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(tiles + row)
    end = tl.load(tiles + row + 1)
    share = tiles_of_program(tl.load(tiles + num_rows), programs)
    first = begin // share
    last = (end - 1) // share
    if (end <= begin) | (first == last):
        return
    column = tl.arange(0, COLUMNS)
    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last + 1, CHUNK):
        program = start + tl.arange(0, CHUNK)
        shared = program <= last
        place = (program * 2 + (program == first)) * HEADS + head
        lses = tl.load(partial_lse + place, mask=shared, other=float("-inf"))
        wanted = shared[:, None] & (column < DIM)[None, :]
        results = tl.load(partial + place[:, None] * DIM + column[None, :], mask=wanted, other=0.0)
        new_highest = tl.maximum(highest, tl.max(lses, 0))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(lses - new_highest)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * results, 0)
        highest = new_highest
    if sinks is not None:
        total += tl.exp2(tl.load(sinks + head) * LOG2E - highest)
    token = tl.load(query_starts + row).to(tl.int64)
    tl.store(out + (token * HEADS + head) * DIM + column, acc / total, mask=column < DIM)


def merge_splits(
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    batch: PagedBatch,
    schedule: TileSchedule,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write the rows that several programs shared into out [T, H * D], always adding up in the same order.

    partial float32 [P, 2, H, D]: what each of P programs made of the row it went on with and of the one it began;
    partial_lse float32 [P, 2, H]: the log, to base 2, of the sum of its exponentials.
    """
    programs, _, num_heads, head_dim = partial.shape
    num_rows = batch.seq_lens.shape[0]
    merge_splits_kernel[(num_rows, num_heads)](
        partial,
        partial_lse,
        out,
        batch.query_starts,
        schedule.decode_tiles,
        sinks,
        num_rows,
        programs,
        HEADS=num_heads,
        DIM=head_dim,
        COLUMNS=triton.next_power_of_2(head_dim),
        CHUNK=MERGED_PROGRAMS,
        num_warps=4,
    )
