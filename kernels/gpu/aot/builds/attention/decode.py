"""Ahead-of-time builds of `quire.kernels.gpu.attention.decode`."""

from collections.abc import Iterator

import torch

from quire.kernels.gpu.aot.build import Build, Feature
from quire.kernels.gpu.attention.decode import decode_constants, decode_kernel
from quire.kernels.gpu.attention.tiles import TYPES, decode_tiles
from quire.kernels.gpu.chip import has_eight_bits


def builds(capability: int) -> Iterator[Build]:
    """Builds of every type, option and padded head size on Hopper (80 and 96 are 128 with a mask), else the usual."""
    half, eight = torch.bfloat16, torch.float8_e4m3fn
    if capability == 90:
        for head_dim in (64, 80, 96, 128, 256, 512):
            yield _build(f"d{head_dim} bf16", head_dim, half, half)
            yield _build(f"d{head_dim} bf16 fp8 cache", head_dim, half, eight)
        for head_dim in (64, 128, 256, 512):
            yield _build(f"d{head_dim} f16", head_dim, torch.float16, torch.float16)
            yield _build(f"d{head_dim} f32", head_dim, torch.float32, torch.float32)
            yield _build(f"d{head_dim} f32 fp8 cache", head_dim, torch.float32, eight)
        yield _build("d128 bf16 one head of a group", 128, half, half, group=1)
        yield _build("d128 bf16 soft cap, sinks", 128, half, half, soft_cap=True, sinks=True)
        yield _build("d64 bf16 fp8 cache, soft cap, sinks", 64, half, eight, group=8, soft_cap=True, sinks=True)
        yield _build("d512 bf16 soft cap, sinks", 512, half, half, soft_cap=True, sinks=True)
        yield _build("d128 bf16 chunks", 128, half, half, chunked=True)
    else:
        for head_dim in (64, 128, 256, 512):
            yield _build(f"d{head_dim} bf16", head_dim, half, half)
        if has_eight_bits(capability):
            yield _build("d128 bf16 fp8 cache", 128, half, eight)
            yield _build("d256 f32 fp8 cache", 256, torch.float32, eight)
            yield _build("d512 bf16 fp8 cache", 512, half, eight)


def _build(
    name: str,
    head_dim: int,
    query_type: torch.dtype,
    cache_type: torch.dtype,
    group: int = 4,
    sinks: bool = False,
    soft_cap: bool = False,
    chunked: bool = False,
) -> Build:
    """Eight key-value heads, pages of 16 tokens."""
    eight_bits = cache_type == torch.float8_e4m3fn
    tiles = decode_tiles(head_dim, query_type, cache_type)
    pointers = {
        "query": f"*{TYPES[query_type]}",
        **dict.fromkeys(("keys", "values"), f"*{TYPES[cache_type]}"),
        "out": f"*{TYPES[query_type]}",
        **dict.fromkeys(("partial", "partial_lse"), "*fp32"),
        **dict.fromkeys(("block_tables", "slots", "seq_lens", "query_starts", "tiles"), "*i32"),
        **dict.fromkeys(("sinks",) if sinks else (), "*fp32"),
        **dict.fromkeys(("key_scale", "value_scale") if eight_bits else (), "*fp32"),
    }
    numbers = dict.fromkeys(("num_rows", "num_tokens", "table_stride", "window"), "i32")
    numbers |= dict.fromkeys(("scale", "soft_cap") if soft_cap else ("scale",), "fp32")
    left_out = {"sinks", "key_scale", "value_scale", "soft_cap"} - {*pointers, *numbers}
    return Build(
        name=f"decode {name}",
        kernel=decode_kernel,
        signature={**pointers, **numbers},
        constants={
            "HEADS": 8,
            "BLOCK_SIZE": 16,
            "CHUNKED": chunked,
            **decode_constants(group, head_dim, query_type, cache_type, tiles),
            **dict.fromkeys(left_out),
        },
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
        divisible=tuple(pointers),
        features=frozenset[Feature]() if query_type == torch.float32 else frozenset({"mma"}),
    )
