"""The pairs of tokens and experts that a program multiplies: some of one expert, or a single one where they are few."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.experts.sort import sort_by_expert, tile_of
from quire.kernels.gpu.experts.tiles import are_few, most_tiles


class Sent(NamedTuple):
    """The places of N pairs, k of each token, among E experts."""

    pairs: torch.Tensor
    """int32 [N]: the pairs of these experts, sorted by expert; of few pairs their experts' numbers, as they come."""
    starts: torch.Tensor | None
    """int32 [E + 1]: where each expert's pairs begin among the sorted. None: each pair is a tile, at its own place."""
    first: int
    """Number of the first of the experts that are here."""
    experts: int
    """E, how many are here."""

    def num_tiles(self, rows: int) -> int:
        """Tiles of so many rows that are launched for these pairs."""
        num_pairs = self.pairs.numel()
        return num_pairs if self.starts is None else most_tiles(num_pairs, self.experts, rows)


def sent(ids: torch.Tensor, first: int, count: int) -> Sent:
    """ids int32 [T, k] -> where they go, of the experts first..first + count - 1."""
    if are_few(ids.numel(), count):
        return Sent(ids.view(-1), None, first, count)
    return Sent(*sort_by_expert(ids, first, count), first, count)


@triton.jit
def rows_of_tile(pairs, starts, first, tile, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """(expert, places [ROWS], which of them are real, pairs [ROWS]) of a tile: `Sent` has pairs, starts and first.

    BLOCK: the power of two from EXPERTS on. A tile of nothing, and of an expert that is not here, has expert EXPERTS.
    """
    if starts is None:
        expert = tl.load(pairs + tile) - first
        expert = tl.where((expert >= 0) & (expert < EXPERTS), expert, EXPERTS)
        places = tile + tl.arange(0, ROWS)
        real = tl.arange(0, ROWS) == 0
        own = tl.where(real, places, 0)
    else:
        expert, row, end = tile_of(starts, tile, EXPERTS, BLOCK, ROWS)
        places = row + tl.arange(0, ROWS)
        real = places < end
        own = tl.load(pairs + places, real, other=0)
    return expert, places, real, own
