"""The pairs of tokens and experts sorted by expert, in one launch without atomics: equal ids give equal places.

Each of E programs reads the T * k ids twice, from the second-level cache: first to count those of earlier experts, then
to put its own where they begin. Floor: 4 * T * k bytes read and written.
"""

import torch
import triton
import triton.language as tl

BLOCK = 2048
"""Ids looked at together."""


@triton.jit(do_not_specialize=["num_pairs", "first"])
def sort_by_expert_kernel(ids, pairs, starts, num_pairs, first, BLOCK: tl.constexpr):
    """Grid (E): program e lists the places of expert `first + e` in ids [num_pairs]; starts [E + 1]."""
    expert = first + tl.program_id(0)
    begin = 0
    for start in range(0, num_pairs, BLOCK):
        place = start + tl.arange(0, BLOCK)
        one = tl.load(ids + place, place < num_pairs, other=-1)
        begin += tl.sum(((one >= first) & (one < expert)).to(tl.int32))
    tl.store(starts + tl.program_id(0), begin)
    for start in range(0, num_pairs, BLOCK):
        place = start + tl.arange(0, BLOCK)
        own = (tl.load(ids + place, place < num_pairs, other=-1) == expert) & (place < num_pairs)
        rank = tl.cumsum(own.to(tl.int32), 0)
        tl.store(pairs + begin + rank - 1, place, own)
        begin += tl.sum(own.to(tl.int32))
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(starts + tl.num_programs(0), begin)


def sort_by_expert(ids: torch.Tensor, first: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids int32 [T, k] -> the pairs, int32 [T * k], of experts first..first + experts - 1, and where each's begin.

    The starts are int32 [experts + 1]; behind the last of them the pairs mean nothing.
    """
    pairs, starts = ids.new_empty(ids.numel()), ids.new_empty(experts + 1)
    block = min(BLOCK, max(32, triton.next_power_of_2(ids.numel())))
    sort_by_expert_kernel[(experts,)](ids, pairs, starts, ids.numel(), first, BLOCK=block, num_warps=4)
    return pairs, starts


@triton.jit
def tile_of(starts, tile, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(expert, its first pair in the tile, the end of its pairs): experts have tiles of ROWS pairs, one after another.

    A tile behind the last one has expert EXPERTS.
    """
    expert = tl.arange(0, BLOCK)
    inside = expert < EXPERTS
    begin = tl.load(starts + expert, inside, other=0)
    end = tl.load(starts + expert + 1, inside, other=0)
    tiles = (end - begin + ROWS - 1) // ROWS
    ends = tl.cumsum(tiles, 0)
    found = tl.sum((inside & (ends <= tile)).to(tl.int32))
    own = expert == found
    row = tl.sum(tl.where(own, begin + (tile - ends + tiles) * ROWS, 0))
    return found, row, tl.sum(tl.where(own, end, 0))
