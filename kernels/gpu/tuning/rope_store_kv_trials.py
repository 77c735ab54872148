"""Trials of `quire bench tune` for `rope_store_kv`."""

import functools
from collections.abc import Callable, Iterator

import torch

from quire.kernels.gpu.attention.rope_store_kv import launch
from quire.kernels.gpu.attention.tiles import HeadLayout, rope_shape_key
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial


def trials() -> Iterator[Trial]:
    """4096 tokens of Llama-3.1-8B's and Qwen3-8B's heads, without the norm."""
    heads, num_tokens, dtype = HeadLayout(8, 4, 128, 64), 4096, torch.bfloat16
    yield Trial(
        "rope_store_kv",
        rope_shape_key(heads, dtype, dtype),
        tuple({"rows": rows, "num_warps": warps} for rows in (8, 16, 32, 64) for warps in (2, 4, 8)),
        num_tokens * (2 * 2 * (heads.group + 2) * heads.num_kv_heads * heads.size + 8 * heads.half),
        functools.partial(_trial, heads, num_tokens, dtype),
    )


def _trial(heads: HeadLayout, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Callable[[Tiles], object]:
    qkv = torch.randn((num_tokens, heads.num_kv_heads * (heads.group + 2) * heads.size), device=device).to(dtype)
    cos, sin = torch.randn((2, num_tokens, heads.half), device=device)
    keys, values = torch.zeros((2, num_tokens // 16, 16, heads.num_kv_heads, heads.size), device=device, dtype=dtype)
    query = qkv.new_empty((heads.num_kv_heads, num_tokens, heads.group, heads.size))
    slots = torch.arange(num_tokens, device=device)
    given = (qkv, cos, sin, keys, values, slots, None, None, 1e-5, None, None)
    return lambda tiles: launch(given, query, heads, tiles)
