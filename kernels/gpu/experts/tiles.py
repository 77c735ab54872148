"""The tiles of the products of experts: by how many pairs an expert has if all have equally many."""

import torch
import triton

from quire.kernels.gpu.tile_table import Tiles

FEW_TILES: Tiles = {"block_o": 16, "block_i": 256, "num_warps": 4, "num_stages": 4}
"""Tiles of the body for few pairs: some 32 KB of half-precision weights under way for each program."""
SUM_BLOCK = 1024
"""Columns of a program that sums a token's results."""
MOST_ROWS = 128
AS_ROWS = 64
"""Pairs of a tile from which on they are the rows of the matrix instruction; fewer are its columns."""
MOST_CODED_ROWS = 64
"""The same where weights are made out of codes: what is multiplied by a tile of them at once lies in shared memory."""


def are_few(num_pairs: int, experts: int) -> bool:
    """True where so few pairs meet that hardly two have an expert in common: each then reads its own."""
    return 2 * num_pairs <= experts


def product_tiles(num_pairs: int, experts: int, dtype: torch.dtype, *, gated: bool) -> Tiles:
    """Rows of a tile and the tiles of the weights; with a gate there are two of those."""
    if dtype == torch.float32:  # no matrix unit takes these
        return {"rows": 16, "block_o": 32, "block_i": 32, "num_warps": 4, "num_stages": 2}
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(triton.cdiv(num_pairs, experts))))
    if rows < AS_ROWS:
        block_i = 64 if gated else 128
        return {"rows": rows, "block_o": 64, "block_i": block_i, "num_warps": 4, "num_stages": 4}
    block_o = 64 if gated else 128
    return {"rows": rows, "block_o": block_o, "block_i": 64, "num_warps": rows // 16, "num_stages": 3}


def most_tiles(num_pairs: int, experts: int, rows: int) -> int:
    """Tiles that so many pairs may take: each expert's last one may be short."""
    return min(num_pairs, num_pairs // rows + experts)


def word_tiles(num_pairs: int, experts: int, dtype: torch.dtype) -> Tiles:
    """Rows of a tile over words of codes, and outputs of a program: the rows of the widest matrix instruction."""
    if dtype == torch.float32:
        return {"rows": 16, "block_o": 32, "num_warps": 4, "num_stages": 2}
    rows = min(MOST_CODED_ROWS, max(16, triton.next_power_of_2(triton.cdiv(num_pairs, experts))))
    return {"rows": rows, "block_o": 64, "num_warps": 4, "num_stages": {16: 4, 32: 3}.get(rows, 2)}
