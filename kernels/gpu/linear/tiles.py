"""The tiles of the linear layers' kernels: what each takes where nothing was measured, and the keys of measurements."""

import torch
import triton

from quire.kernels.gpu.tile_table import Tiles

ACTIVATION_TILES: Tiles = {"block": 1024, "num_warps": 4}
"""Columns of a program, 16 bytes of gate and as many of up for each thread; and its warps."""
EMBEDDING_COLUMNS = 1024
"""Columns of a program."""
WIDEST_NORM = 8192
"""Elements of a row that fit the registers of a program; longer rows are read twice."""
NORM_TILE = 1024
"""Elements of a program's rows together, where rows are short."""
MOST_TOKENS = 16
"""Rows of one matrix instruction, and of the partial sums of a split layer."""
ADD_BLOCK = 256
"""Columns of a program that adds the parts of a split layer."""
CUBLAS: Tiles = {"cublas": 1}
"""The layer is left to cuBLAS."""


def layer_norm_warps(block: int) -> int:
    """8 to 16 elements for each thread."""
    return min(16, max(1, block // 512))


def norm_tiles(size: int) -> Tiles:
    """Rows of a program and its warps: 8 to 16 elements for each thread."""
    block = min(WIDEST_NORM, triton.next_power_of_2(size))
    return {"rows": max(1, NORM_TILE // block), "num_warps": min(16, max(4, block // 512))}


def skinny_tiles(num_tokens: int, size_in: int, size_out: int) -> Tiles:
    """Tiles for at least 128 programs where the layer allows, each with some 40 KB of half-precision weights under way.

    Many programs are small, so that some four share a multiprocessor and all run at once.
    """
    least = 16 if num_tokens <= 8 else 32  # a row of weights costs as many bytes of x as there are tokens
    block_o = next((rows for rows in (64, 32) if rows >= least and size_out >= 128 * rows), least)
    programs = triton.cdiv(size_out, block_o)
    block_i, warps, stages = (min(8192 // block_o, 256), 8, 4) if programs <= 256 else (4096 // block_o, 4, 5)
    parts = 1
    while programs * parts < 128 and size_in >= 16 * block_i * parts:
        parts *= 2
    sizes = {"block_o": block_o, "block_i": block_i, "parts": parts, "num_warps": warps, "num_stages": stages}
    return {"cublas": 0, **sizes}


def linear_shape_key(num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype, is_gated: bool) -> str:
    """`t4 4096 -> 28672 bfloat16 gated`; tokens are rounded up to a power of two."""
    tokens = 1 << (num_tokens - 1).bit_length() if num_tokens else 1
    name = str(dtype).removeprefix("torch.")
    return f"t{tokens} {size_in} -> {size_out} {name}{' gated' if is_gated else ''}"
