"""Ahead-of-time builds of both bodies of `quire.kernels.gpu.attention.prefill`."""

import itertools
from collections.abc import Iterator

import torch

from quire.kernels.gpu.aot.build import Build, Feature, matrix_feature
from quire.kernels.gpu.attention.prefill import prefill_constants, prefill_kernel
from quire.kernels.gpu.attention.tiles import TYPES, PrefillBody, select_prefill_body
from quire.kernels.gpu.chip import has_eight_bits


def builds(capability: int) -> Iterator[Build]:
    """Builds on Hopper of every head size and class of type, page and option that `select_prefill_body` tells apart."""
    f16, bf16, f32, f8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    yield _build(capability, 128, bf16, options=True)
    yield _build(capability, 256, bf16, f8 if has_eight_bits(capability) else bf16, options=True)
    yield _build(capability, 512, bf16, options=True)
    yield _build(capability, 512, bf16)
    if has_eight_bits(capability):
        yield _build(capability, 512, bf16, f8, options=True)
    yield _build(capability, 128, bf16, options=True, ahead=True)
    if capability in (80, 120):
        yield _build(capability, 128, f32, options=True)
    if capability != 90:
        return
    for head_dim in (64, 80, 96):
        yield _build(capability, head_dim, bf16)
    for head_dim in (64, 128, 256, 512):
        yield _build(capability, head_dim, f32, options=True)
    yield _build(capability, 256, bf16, options=True, ahead=True)
    yield _build(capability, 128, bf16, f8, options=True)
    yield _build(capability, 128, f16)
    yield _build(capability, 256, bf16, options=True)
    yield _build(capability, 256, bf16, block_size=64)
    for head_dim, block_size in itertools.product((64, 128), (64, 128)):
        yield _build(capability, head_dim, bf16, block_size=block_size)
        yield _build(capability, head_dim, bf16, block_size=block_size, specialized=False)
    for cache_type in (f16, f8):
        yield _build(capability, 128, f16, cache_type, block_size=128, options=True)
    yield _build(capability, 128, bf16, f8, block_size=64, options=True)
    yield _build(capability, 64, bf16, f8, block_size=64, options=True)


def _build(
    capability: int,
    head_dim: int,
    query_type: torch.dtype,
    cache_type: torch.dtype | None = None,
    block_size: int = 16,
    options: bool = False,
    specialized: bool = True,
    ahead: bool = False,
) -> Build:
    """`options`: a window, a soft cap and sinks; `ahead`: the window is a chunk, and tokens look ahead."""
    cache_type = cache_type or query_type
    body = select_prefill_body(capability, block_size, head_dim, query_type, cache_type, specialized=specialized)
    q, c = TYPES[query_type], TYPES[cache_type]
    cache = f"tensordesc<{c}[1, {body.keys}, {head_dim}]>" if body.specialized else f"*{c}"
    given: dict[str, str | None] = {
        "query": f"*{q}",
        **dict.fromkeys(("keys", "values"), cache),
        "out": f"*{q}",
        **dict.fromkeys(("block_tables", "slots", "seq_lens", "query_starts", "tiles"), "*i32"),
        "sinks": "*fp32" if options else None,
        **dict.fromkeys(("key_scale", "value_scale"), "*fp32" if cache_type == torch.float8_e4m3fn else None),
        "scale": "fp32",
        "soft_cap": "fp32" if options else None,
        "window": "i32" if options else None,
        **dict.fromkeys(("num_rows", "num_tokens", "table_width"), "i32"),
    }
    plain = {} if body.specialized else {"CHUNKED": ahead}
    if not body.specialized:
        given["last_visible"] = "*i32" if ahead else None
    return Build(
        name=f"d{head_dim} {q} cache {c} page {block_size}{' options' if options else ''}{' ahead' if ahead else ''}"
        + (" specialized" if body.specialized else ""),
        kernel=prefill_kernel(body),
        signature={name: kind for name, kind in given.items() if kind is not None},
        constants={
            **{name: None for name, kind in given.items() if kind is None},
            **plain,
            **prefill_constants(body, 4, head_dim, block_size),
        },
        num_warps=body.num_warps,
        num_stages=body.num_stages,
        divisible=tuple(name for name, kind in given.items() if kind is not None and kind.startswith("*")),
        features=_features(capability, body, head_dim, query_type),
    )


def _features(capability: int, body: PrefillBody, head_dim: int, query_type: torch.dtype) -> frozenset[Feature]:
    """Heads of 512 in float32 are multiplied without matrix instructions; those of Hopper and later take 64 rows."""
    if body.specialized:
        return frozenset({matrix_feature(capability), "warp_specialize", "tma"})
    if query_type == torch.float32:
        return frozenset() if head_dim > 256 else frozenset({"mma", "wide_copy"})
    return frozenset({"mma" if body.rows < 64 else matrix_feature(capability), "wide_copy"})
