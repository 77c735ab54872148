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
MOST_TOKENS = 4
"""Tokens of a layer without matrix instructions: of more, vector instructions take longer than reading the weights."""
ADD_BLOCK = 256
"""Columns of a program that adds the parts of a split layer."""
CUBLAS: Tiles = {"cublas": 1, "block_o": 0, "block_i": 0, "num_warps": 0}
"""The layer is left to cuBLAS."""


def layer_norm_warps(block: int) -> int:
    """8 to 16 elements for each thread."""
    return min(16, max(1, block // 512))


def norm_tiles(size: int) -> Tiles:
    """Rows of a program and its warps: 8 to 16 elements for each thread."""
    block = min(WIDEST_NORM, triton.next_power_of_2(size))
    return {"rows": max(1, NORM_TILE // block), "num_warps": min(16, max(4, block // 512))}


def vector_tiles(num_tokens: int, is_normed: bool) -> Tiles:
    """Tiles with which each thread has 64 or 128 bytes of weights under way.

    As measured on an H200: of three and four tokens the norm, which every program takes anew, costs more than launches
    of its own beside cuBLAS.
    """
    if num_tokens > 2:
        return CUBLAS if is_normed else {"cublas": 0, "block_o": 8, "block_i": 1024, "num_warps": 4}
    return {"cublas": 0, "block_o": 4, "block_i": 2048 if num_tokens == 1 else 1024, "num_warps": 4}


def linear_shape_key(num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype, is_gated: bool) -> str:
    """`t4 4096 -> 28672 bfloat16 gated`; tokens are rounded up to a power of two."""
    tokens = 1 << (num_tokens - 1).bit_length() if num_tokens else 1
    name = str(dtype).removeprefix("torch.")
    return f"t{tokens} {size_in} -> {size_out} {name}{' gated' if is_gated else ''}"
