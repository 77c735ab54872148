"""The tiles of the attention kernels: what each takes where nothing was measured, and the keys of measurements."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.attention.tile_schedule import QUERY_ROWS_PER_TILE
from quire.kernels.attention.window import Chunk, Window
from quire.kernels.gpu import prefill_switch
from quire.kernels.gpu.tile_table import Tiles

LARGEST_HEAD = 512
"""Any head dim up to this."""
COPY_BYTES = 4096
"""Bytes of keys, and of values, that a program of `copy_blocks` moves."""
MERGED_PROGRAMS = 32
"""Programs whose results `merge_splits` adds up together."""
TYPES = {
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}
_TURNS = {
    (64, 1): (64, 4),
    (64, 2): (128, 3),
    (64, 4): (32, 3),
    (128, 1): (64, 3),
    (128, 2): (64, 3),
    (128, 4): (32, 3),
    (256, 1): (32, 3),
    (256, 2): (32, 3),
    (256, 4): (32, 2),
    (512, 1): (16, 3),
    (512, 2): (16, 3),
    (512, 4): (16, 1),
}
"""Padded head dim, bytes of an element -> keys of a turn, stages: all that two programs' registers and shared memory
hold without a spill."""


def decode_shape_key(head_dim: int, query_type: torch.dtype, cache_type: torch.dtype) -> str:
    """Key of the tiles measured for these types and this head."""
    return f"d{head_dim} {TYPES[query_type]} {TYPES[cache_type]}"


def decode_tiles(head_dim: int, query_type: torch.dtype, cache_type: torch.dtype) -> Tiles:
    """`keys` of a turn; `programs` of a multiprocessor, of which one computes while another waits for memory."""
    padded, num_warps = max(64, triton.next_power_of_2(head_dim)), 4
    keys, stages = _TURNS[padded, cache_type.itemsize]
    if padded == 512 and cache_type.itemsize > 1:
        num_warps = 8
    if query_type == torch.float32 and cache_type.itemsize == 1:
        # what is converted to float32 takes its registers, however few bytes are cached
        keys, num_warps = {64: (32, 4), 128: (16, 8), 256: (32, 4), 512: (16, 8)}[padded]
        stages = 1 if padded >= 256 else stages
    return {"keys": keys, "programs": 2, "num_warps": num_warps, "num_stages": stages}


@dataclass(frozen=True, slots=True)
class PrefillBody:
    """A body of prefill: which kernel runs, and what its launch fixes."""

    specialized: bool
    rows: int
    """of queries that a program takes, of the 128 of a tile"""
    keys: int
    """of a tile"""
    compute: torch.dtype
    """of the products' operands"""
    num_warps: int
    num_stages: int


def select_prefill_body(
    capability: int,
    block_size: int,
    head_dim: int,
    query_type: torch.dtype,
    cache_type: torch.dtype,
    window: Window | None = None,
    specialized: bool = True,
) -> PrefillBody:
    """The body for a chip (90 is compute capability 9.0) and a model; without `specialized` the plain one.

    The numbers are those that the compiler fits into registers and shared memory with every option on.
    """
    eight_bits = cache_type == torch.float8_e4m3fn
    wide, widest = head_dim > 128, head_dim > 256
    compute = query_type
    if eight_bits and query_type == torch.bfloat16 and (widest or not (wide and capability >= 90)):
        # it holds 8-bit floats exactly, and the machine makes two at once; the queries it converts take registers
        compute = torch.float16
    specialized &= capability == prefill_switch.CAPABILITY and query_type.itemsize == 2 and cache_type.itemsize <= 2
    if specialized and head_dim in (64, 128) and not isinstance(window, Chunk):
        for keys in (64,) if eight_bits else (128, 64):
            if block_size >= keys and (window is None or window >= keys):
                return PrefillBody(True, QUERY_ROWS_PER_TILE, keys, compute, num_warps=4, num_stages=2)
    if widest:  # the sums of 64 rows would leave no registers, with all options or with none
        if query_type == torch.float32:
            return PrefillBody(False, 16, 16, compute, 8, 1)
        return PrefillBody(False, 32, 32, compute, 8, 2)
    if query_type == torch.float32:  # each factor of a product is held as a sum of two
        return PrefillBody(False, 16, 16, compute, 8, 2) if wide else PrefillBody(False, 32, 32, compute, 8, 2)
    if 90 <= capability < 120:
        return PrefillBody(False, 128, 32 if wide else 64, compute, 8, 3)
    return PrefillBody(False, 64, 32, compute, 8, 2) if wide else PrefillBody(False, 128, 64, compute, 8, 2)


class EncoderTiles(NamedTuple):
    """Sizes of a tile, and of the launch that works on it."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


LONG_ROW = 512
"""Tokens from which on a row's keys would come from the chip's cache too often for tiles of 64 queries."""


def encoder_tiles(head_dim: int, itemsize: int, longest: int) -> EncoderTiles:
    """Tiles that fit the registers and the shared memory of every chip: the wider a head, the smaller.

    `longest` is the longest row. Where it is long a program takes twice the queries with twice the warps: a byte of a
    key is then worth 128 FLOPs in 16-bit types, which the caches of all chips keep up with.
    """
    wide = sum(head_parts(head_dim)) * itemsize
    if itemsize == 2:
        keys, stages = 64 if wide <= 192 else 32, 3 if wide <= 256 else 2
        num_warps = 4 if wide <= 256 else 8
        if longest > LONG_ROW and wide <= 256:
            return EncoderTiles(128, keys, 2 * num_warps, stages)
        return EncoderTiles(64, keys, num_warps, stages)
    # each factor of a product in float32 is held as a sum of two
    if wide <= 128:
        return EncoderTiles(64, 64, 4, 3)
    if wide <= 256:
        return EncoderTiles(64, 32, 8, 3)
    return EncoderTiles(16, 32, 8, 2) if wide <= 512 else EncoderTiles(16, 16, 8, 2)


def head_parts(head_dim: int) -> tuple[int, int]:
    """Powers of two that hold a head between them, 16 at least each: one, and what is left for another or 0."""
    whole = _padded(head_dim)
    rest = _padded(head_dim - whole // 2)
    return (whole // 2, rest) if whole // 2 + rest < whole else (whole, 0)


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


class HeadLayout(NamedTuple):
    """The heads of the QKV product: key-value heads, query heads of each, elements, turning pairs."""

    num_kv_heads: int
    group: int
    size: int
    half: int

    @classmethod
    def of(cls, qkv: torch.Tensor, keys: torch.Tensor, half: int) -> "HeadLayout":
        num_kv_heads, size = keys.shape[2:]
        return cls(num_kv_heads, qkv.shape[1] // size // num_kv_heads - 2, size, half)

    def blocks(self) -> tuple[int, int]:
        """Elements of each part of a head, padded: of either turning half, and of the rest; 0 for a part it lacks."""
        half, rest = (triton.next_power_of_2(n) if n else 0 for n in (self.half, self.size - 2 * self.half))
        return half, rest


def rope_shape_key(heads: HeadLayout, dtype: torch.dtype, cache: torch.dtype) -> str:
    return f"k{heads.num_kv_heads} g{heads.group} d{heads.size} half{heads.half} {dtype} to {cache}"


def rope_tiles(heads: HeadLayout) -> Tiles:
    """Rows enough for each thread to move 8 elements of a head's smallest part, but at most 32 of whole heads."""
    half, rest = heads.blocks()
    for_smallest = 8 * 128 // min(block for block in (half, rest) if block)
    at_most = 32 * 128 // triton.next_power_of_2(2 * half + rest)
    return {"rows": max(1, min(for_smallest, at_most)), "num_warps": 4}
