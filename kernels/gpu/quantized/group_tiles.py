"""The tiles of products on codes of groups: what the device's table says of a layer, or what they take without it."""

import math

import triton

from quire.kernels.gpu.tile_table import Tiles, tile
from quire.kernels.linear.linear_group_words import WORDS, tile_inputs
from quire.kernels.linear.linear_groups import Bits

OPERATION = "linear_group_words"
"""Whose tiles the table has."""
MOST_TOKENS = 64
"""Tokens up to which codes become weights where they are multiplied; of more a weight is made once for all."""
BLOCK_O = 64
"""Outputs of a program: the rows of the widest matrix instruction; the words of a tile are 8 KB."""
WORKSPACE = 64 << 20
"""Bytes of weights that are made at once where there are many tokens: no layer needs more beside it."""
PIECE_OUTPUTS, PIECE_WARPS = 32, 4
"""Outputs of a program that makes weights, and its warps."""


def group_tiles(num_tokens: int, size_in: int, size_out: int, bits: Bits) -> Tiles:
    """Tiles for at most 64 tokens.

    The table has what was measured of 16 tokens; more of them take its parts. Those do not depend on the tokens, so
    that a token's result does not either. `rows`: of the sums of a part; of two kinds, so that a step of 17 tokens has
    compiled what one of 64 runs.
    """
    few = tile(OPERATION, group_shape_key(size_in, size_out, bits), default_tiles(size_in, size_out, bits))
    if num_tokens <= 16:
        return few
    return {"tokens": 32, "rows": MOST_TOKENS, "parts": few["parts"], "num_warps": 4, "num_stages": 3}


def default_tiles(size_in: int, size_out: int, bits: Bits) -> Tiles:
    """Tiles of 16 tokens: some 24 KB of words on their way to each program, and parts for at least 256 programs."""
    programs, tiles = triton.cdiv(size_out, BLOCK_O), triton.cdiv(size_in, tile_inputs(bits))
    parts = 1
    while programs * parts < 256 and tiles >= 4 * parts:
        parts *= 2
    return {"tokens": 16, "rows": 16, "parts": parts, "num_warps": 4, "num_stages": 4}


def group_shape_key(size_in: int, size_out: int, bits: Bits) -> str:
    """`4096 -> 6144 4 bits`: of a layer, however its scales lie."""
    return f"{size_in} -> {size_out} {bits} bits"


def slices_of(size_in: int, groups: int, bits: Bits) -> dict[str, int | None]:
    """Arguments of the kernels by these names: how groups and the slices of 32 inputs of a tile lie.

    RUN: slices, one after the other, that are sure to be of one group; PER: groups of a slice, one or two of 16 inputs;
    group_size: None where tiles are of whole groups, of which nothing has to be divided to tell their numbers.
    """
    size, tile = size_in // groups, tile_inputs(bits)
    run = math.gcd(max(size // WORDS, 1), tile // WORDS)
    return {"RUN": run, "PER": max(WORDS // size, 1), "group_size": size if tile % size else None}


def piece_outputs(size_in: int, size_out: int, itemsize: int) -> int:
    """Outputs whose weights are made at once."""
    return min(size_out, max(PIECE_OUTPUTS, WORKSPACE // (size_in * itemsize) // PIECE_OUTPUTS * PIECE_OUTPUTS))
