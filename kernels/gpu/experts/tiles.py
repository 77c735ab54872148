"""The tiles of the products of experts: by how many pairs an expert has if all have equally many."""

import torch
import triton

from quire.kernels.gpu.tile_table import Tiles, tile

SUM_BLOCK = 1024
"""Columns of a program that sums a token's results."""
MOST_ROWS = 128
AS_ROWS = 64
"""Pairs of a tile from which on they are the rows of the matrix instruction; fewer are its columns."""
AT_ONCE = 128
"""Programs that a chip runs at once, or few less: with fewer, what they read takes longer than it must."""
MOST_CODED_ROWS = 64
"""Rows of a tile where weights are made out of codes: what they are multiplied by lies in shared memory at once."""


def are_few(num_pairs: int, experts: int) -> bool:
    """True where so few pairs meet that hardly two have an expert in common: each then reads its own.

    On an H200 four tokens, 8 of 128 experts each, take as long sorted, and eight take 9 % less.
    """
    return 4 * num_pairs <= experts


def few_tiles(num_tokens: int, outputs: int, dtype: torch.dtype, *, gated: bool) -> Tiles:
    """Tiles of the body for few pairs, of a product to so many outputs: a program has 64 KB of weights under way."""
    default: Tiles = {"block_o": 16, "block_i": 256, "num_warps": 4, "num_stages": 4}
    if dtype == torch.float32:
        return default
    if gated:
        return tile("experts", f"few gated {_name(dtype)}", {**default, "block_o": 32, "block_i": 128})
    if num_tokens * outputs < 32 * AT_ONCE:
        return default
    return tile("experts", f"few {_name(dtype)}", {**default, "block_o": 32, "num_stages": 3})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def product_tiles(num_pairs: int, experts: int, dtype: torch.dtype, *, gated: bool) -> Tiles:
    """Rows of a tile and the tiles of the weights; with a gate there are two of those."""
    if dtype == torch.float32:  # no matrix unit takes these
        return {"rows": 16, "block_o": 32, "block_i": 32, "num_warps": 4, "num_stages": 2}
    # more than an expert has on average: a second tile reads its matrix again
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(triton.cdiv(3 * num_pairs, 2 * experts))))
    default: Tiles
    if rows < AS_ROWS:
        block_i = 64 if gated else 128
        default = {"block_o": 64, "block_i": block_i, "num_warps": 4, "num_stages": 4}
    else:
        default = {"block_o": 64 if gated else 128, "block_i": 64, "num_warps": rows // 16, "num_stages": 3}
    return {"rows": rows, **tile("experts", f"{rows} rows{' gated' if gated else ''} {_name(dtype)}", default)}


def most_tiles(num_pairs: int, experts: int, rows: int) -> int:
    """Tiles that so many pairs may take: each expert's last one may be short."""
    return min(num_pairs, num_pairs // rows + experts)


def word_tiles(num_pairs: int, experts: int, dtype: torch.dtype, *, superblocks: bool) -> Tiles:
    """Rows of a tile over words of codes, and outputs of a program: the rows of the widest matrix instruction.

    What scales of superblocks are multiples of takes the registers that one more stage would.
    """
    if dtype == torch.float32:
        return {"rows": 16, "block_o": 32, "num_warps": 4, "num_stages": 2}
    rows = min(MOST_CODED_ROWS, max(16, triton.next_power_of_2(triton.cdiv(3 * num_pairs, 2 * experts))))
    stages = 2 if rows >= AS_ROWS else 3 if rows > 16 or superblocks else 4
    default: Tiles = {"block_o": 64, "num_warps": 4, "num_stages": stages}
    return {"rows": rows, **tile("experts", f"{rows} rows of words {_name(dtype)}", default)}
