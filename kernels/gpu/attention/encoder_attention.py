"""Attention in both directions on GPUs: a program for each tile of a row's queries and each head sweeps the row's keys.

Floor: 4 * H * D FLOPs for each pair of tokens of a row; queries, keys and values are read once for each tile of
queries, from the cache of the chip unless a row is very long.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.attention.softmax import begun, between, exponent_scale, weighed
from quire.kernels.gpu.attention.tiles import LARGEST_HEAD, EncoderTiles, encoder_tiles, padded_head


@triton.jit(do_not_specialize=["scale"])
def encoder_attention_kernel(
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
    shape = encoder_tiles(head_dim, qkv.dtype.itemsize)
    tiles = triton.cdiv(max(lengths_host, default=0), shape.queries)
    if tiles:
        encoder_attention_kernel[(len(lengths_host), num_heads, tiles)](
            qkv,
            starts,
            out,
            scale,
            **encoder_constants(num_heads, head_dim, shape),
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )
    return out


def encoder_constants(num_heads: int, head_dim: int, shape: EncoderTiles) -> dict[str, int]:
    """Compile-time arguments of the kernel."""
    tiles = {"QUERIES": shape.queries, "KEYS": shape.keys}
    return {"HEADS": num_heads, "HEAD_DIM": head_dim, "PADDED_DIM": padded_head(head_dim), **tiles}
