"""Attention in both directions on GPUs: a program for each tile of a row's queries and each head sweeps the row's keys.

Floor: 4 * H * D FLOPs for each pair of tokens of a row; queries, keys and values are read once for each tile of
queries, from the cache of the chip: programs of one row and head follow each other.

Products take powers of two. A head that is none is taken in two parts where that multiplies less than padding it: 72
and 80 elements are 64 and 16, not 128.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.attention.softmax import begun, between, exponent_scale, weighed
from quire.kernels.gpu.attention.tiles import LARGEST_HEAD, EncoderTiles, encoder_tiles, head_parts


@triton.jit
def _part(base, rows, length, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """Elements FIRST to FIRST + COUNT of a head of some rows of qkv; zeros beyond the head and behind the row."""
    dims = FIRST + tl.arange(0, COUNT)[None, :]
    places = base + rows.to(tl.int64)[:, None] * (3 * WIDTH) + dims
    return tl.load(places, mask=(rows < length)[:, None] & (dims < HEAD_DIM), other=0.0)


@triton.jit
def _write(out, acc, rows, length, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr, FIRST: tl.constexpr):
    dims = FIRST + tl.arange(0, acc.shape[1])[None, :]
    places = out + rows.to(tl.int64)[:, None] * WIDTH + dims
    tl.store(places, acc.to(out.dtype.element_ty), mask=(rows < length)[:, None] & (dims < HEAD_DIM))


@triton.jit(do_not_specialize=["scale", "tiles"])
def encoder_attention_kernel(
    qkv,
    starts,
    out,
    scale,
    tiles,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PART: tl.constexpr,
    REST: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """The grid is [R * tiles, H], `tiles` those of the longest row. PART, REST: see `head_parts`."""
    row, head = tl.program_id(0) // tiles, tl.program_id(1)
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    first = tl.program_id(0) % tiles * QUERIES
    if first >= length:
        return
    factor = exponent_scale(scale, None)
    WIDTH: tl.constexpr = HEADS * HEAD_DIM
    base = qkv + start.to(tl.int64) * (3 * WIDTH) + head * HEAD_DIM
    rows = first + tl.arange(0, QUERIES)
    q = _part(base, rows, length, WIDTH, HEAD_DIM, 0, PART)
    highest, total = begun(None, QUERIES)
    acc = tl.zeros([QUERIES, PART], tl.float32)
    if REST > 0:
        q_rest = _part(base, rows, length, WIDTH, HEAD_DIM, PART, REST)
        acc_rest = tl.zeros([QUERIES, REST], tl.float32)
    for low in tl.range(0, length, KEYS):
        columns = low + tl.arange(0, KEYS)
        k = _part(base + WIDTH, columns, length, WIDTH, HEAD_DIM, 0, PART)
        scores = tl.dot(q, k.T, input_precision="tf32x3")
        if REST > 0:
            k_rest = _part(base + WIDTH, columns, length, WIDTH, HEAD_DIM, PART, REST)
            scores = tl.dot(q_rest, k_rest.T, scores, input_precision="tf32x3")
        scores = between(scores, 0, length - 1 - low)
        weights, shrink, highest, total = weighed(scores, factor, highest, total)
        weights = weights.to(q.dtype)
        v = _part(base + 2 * WIDTH, columns, length, WIDTH, HEAD_DIM, 0, PART)
        acc = tl.dot(weights, v, acc * shrink[:, None], input_precision="tf32x3")
        if REST > 0:
            v_rest = _part(base + 2 * WIDTH, columns, length, WIDTH, HEAD_DIM, PART, REST)
            acc_rest = tl.dot(weights, v_rest, acc_rest * shrink[:, None], input_precision="tf32x3")
    to = out + start.to(tl.int64) * WIDTH + head * HEAD_DIM
    share = (1.0 / total)[:, None]
    _write(to, acc * share, rows, length, WIDTH, HEAD_DIM, 0)
    if REST > 0:
        _write(to, acc_rest * share, rows, length, WIDTH, HEAD_DIM, PART)


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
    longest = max(lengths_host, default=0)
    shape = encoder_tiles(head_dim, qkv.dtype.itemsize, longest)
    tiles = triton.cdiv(longest, shape.queries)
    if tiles:
        encoder_attention_kernel[(len(lengths_host) * tiles, num_heads)](
            qkv,
            starts,
            out,
            scale,
            tiles,
            **encoder_constants(num_heads, head_dim, shape),
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )
    return out


def encoder_constants(num_heads: int, head_dim: int, shape: EncoderTiles) -> dict[str, int]:
    """Compile-time arguments of the kernel."""
    part, rest = head_parts(head_dim)
    tiles = {"QUERIES": shape.queries, "KEYS": shape.keys}
    return {"HEADS": num_heads, "HEAD_DIM": head_dim, "PART": part, "REST": rest, **tiles}
