"""Attention in both directions on GPUs: a program for each tile of a row's queries and each head sweeps the row's keys.

Floor: 4 * H * D FLOPs for each pair of tokens of a row; queries, keys and values are read once for each tile of
queries, from the cache of the chip unless a row is very long.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build, Feature, matrix_feature
from quire.kernels.gpu.attention.softmax import begun, between, exponent_scale, weighed

LARGEST_HEAD = 256


class Shape(NamedTuple):
    """Of a tile, and of the launch that works on it."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


def shape_of(head_dim: int, itemsize: int) -> Shape:
    """What fits the registers and the shared memory of every chip: the wider a head, the smaller its tiles."""
    wide = _padded(head_dim) * itemsize
    if wide <= 128:
        return Shape(64, 64, 4, 3)
    if itemsize == 2:
        return Shape(64, 32, 4, 3) if wide <= 256 else Shape(64, 32, 8, 2)
    # each factor of a product in float32 is held as a sum of two
    return Shape(64, 32, 8, 3) if wide <= 256 else Shape(16, 32, 8, 2) if wide <= 512 else Shape(16, 16, 8, 2)


@triton.jit(do_not_specialize=["scale"])
def _encoder_kernel(
    qkv,
    starts,
    out,
    scale,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """The grid is [R, H, tiles of the longest row]. PADDED_DIM: D padded to a power of two, 16 at least."""
    row, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    first = tl.program_id(2) * QUERIES
    if first >= length:
        return
    factor = exponent_scale(scale, None)
    dims = tl.arange(0, PADDED_DIM)
    within = (dims < HEAD_DIM)[None, :]
    width = HEADS * HEAD_DIM
    base = qkv + start.to(tl.int64) * (3 * width) + head * HEAD_DIM + dims[None, :]
    rows = first + tl.arange(0, QUERIES)
    filled = (rows < length)[:, None] & within
    q = tl.load(base + rows.to(tl.int64)[:, None] * (3 * width), mask=filled, other=0.0)
    highest, total = begun(None, QUERIES)
    acc = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    for low in tl.range(0, length, KEYS):
        columns = low + tl.arange(0, KEYS)
        wanted = (columns < length)[:, None] & within
        places = base + columns.to(tl.int64)[:, None] * (3 * width)
        k = tl.load(places + width, mask=wanted, other=0.0)
        scores = between(tl.dot(q, k.T, input_precision="tf32x3"), 0, length - 1 - low)
        weights, shrink, highest, total = weighed(scores, factor, highest, total)
        v = tl.load(places + 2 * width, mask=wanted, other=0.0)
        acc = tl.dot(weights.to(q.dtype), v, acc * shrink[:, None], input_precision="tf32x3")
    to = out + (start + rows).to(tl.int64)[:, None] * width + head * HEAD_DIM + dims[None, :]
    tl.store(to, (acc * (1.0 / total)[:, None]).to(out.dtype.element_ty), mask=filled)


def encoder_attention(
    qkv: torch.Tensor, starts: torch.Tensor, lengths_host: tuple[int, ...], num_heads: int, scale: float
) -> torch.Tensor:
    """See `quire.kernels.attention.encoder_attention`. The grid follows the host's lengths, so it is never captured."""
    num_tokens, width = qkv.shape
    head_dim = width // (3 * num_heads)
    if qkv.dtype == torch.float64:
        raise ValueError("qkv: float64 runs on the CPU only; use float32, float16 or bfloat16")
    if head_dim > LARGEST_HEAD:
        raise ValueError(f"qkv: heads of at most {LARGEST_HEAD} elements run on GPUs, got {head_dim}")
    out = torch.empty((num_tokens, width // 3), dtype=qkv.dtype, device=qkv.device)
    shape = shape_of(head_dim, qkv.dtype.itemsize)
    tiles = triton.cdiv(max(lengths_host, default=0), shape.queries)
    if tiles:
        _encoder_kernel[(len(lengths_host), num_heads, tiles)](
            qkv, starts, out, scale,
            **_constants(num_heads, head_dim, shape), num_warps=shape.num_warps, num_stages=shape.num_stages,
        )  # fmt: skip
    return out


def _constants(num_heads: int, head_dim: int, shape: Shape) -> dict[str, int]:
    tiles = {"QUERIES": shape.queries, "KEYS": shape.keys}
    return {"HEADS": num_heads, "HEAD_DIM": head_dim, "PADDED_DIM": _padded(head_dim), **tiles}


def _padded(head_dim: int) -> int:
    return max(16, 1 << (head_dim - 1).bit_length())


def builds(capability: int) -> Iterator[Build]:
    """BERT base (twelve heads of 64), MiniLM (twelve of 32), bge-m3 (sixteen of 64), and every wider head."""
    if capability != 90:
        for head_dim, dtype in ((64, "bf16"), (128, "bf16"), (256, "bf16"), (64, "fp32"), (256, "fp32")):
            yield _build(capability, 12, head_dim, dtype)
        return
    yield _build(capability, 12, 32, "bf16")
    yield _build(capability, 16, 64, "bf16")
    for head_dim, dtype in itertools.product((64, 80, 96, 128, 256), ("bf16", "fp16", "fp32")):
        yield _build(capability, 12, head_dim, dtype)


def _build(capability: int, heads: int, head_dim: int, dtype: str) -> Build:
    shape = shape_of(head_dim, 4 if dtype == "fp32" else 2)
    # the newest instructions take 64 rows at a time
    feature: Feature = matrix_feature(capability) if shape.queries == 64 else "mma"
    return Build(
        name=f"h{heads} d{head_dim} {dtype}",
        kernel=_encoder_kernel,
        signature={"qkv": f"*{dtype}", "starts": "*i32", "out": f"*{dtype}", "scale": "fp32"},
        constants=_constants(heads, head_dim, shape),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        divisible=("qkv", "out"),
        features=frozenset({feature}),
    )
