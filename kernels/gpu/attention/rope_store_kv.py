"""From the QKV product to attention in one launch: norm of the heads, rotation, KV write, and the query's layout.

The product's rows of D elements, one for each token and head, are dealt out in order, ROWS to a program, whatever the
head counts: a program reads one stretch of memory, and each thread 16 bytes of either half of a head, so that the two
elements of a rotating pair meet in one thread. A row is a query, a key or a value; it is turned unless it is a value.

Floor for each token: (H + 2K) * D elements read, H * D written to the query and 2 * K * D to the cache, 8 * half
bytes of angles; some 12 FLOPs for each element, so memory is the limit.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from quire.kernels.attention.rope_store_kv import as_padding
from quire.kernels.gpu.attention.tiles import HeadLayout, rope_shape_key, rope_tiles
from quire.kernels.gpu.tile_table import Tiles, tile

LARGEST_E4M3 = tl.constexpr(448.0)


@triton.jit
def _wide(pointer, column, inside):
    return tl.load(pointer + column, inside, other=0.0).to(tl.float32)


@triton.jit
def _normed(x, factor, weight, column, inside, DTYPE: tl.constexpr):
    """The norm of x: both factors of the product are rounded to the weight's type, and it to the model's."""
    product = (x * factor).to(weight.dtype.element_ty).to(tl.float32) * _wide(weight, column, inside)
    return product.to(DTYPE).to(tl.float32)


@triton.jit
def _write(x, column, inside, to_query, query, to_cache, cache, scale, DTYPE: tl.constexpr):
    x = x.to(DTYPE)
    tl.store(query + column, x, inside & to_query)
    stored = x.to(tl.float32)
    if scale is not None:
        stored = tl.clamp(stored / scale, -LARGEST_E4M3, LARGEST_E4M3, propagate_nan=tl.PropagateNan.ALL)
    tl.store(cache + column, stored.to(cache.dtype.element_ty), inside & to_cache)


@triton.jit(do_not_specialize=["num_tokens"])
def rope_store_kv_kernel(
    qkv,
    cos,
    sin,
    keys,
    values,
    slot_mapping,
    query_weight,
    key_weight,
    eps,
    key_scale,
    value_scale,
    query,
    num_tokens,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
):
    """HALF_BLOCK, REST_BLOCK: HALF and the D - 2 * HALF elements that never turn, padded; 0: there are none."""
    HEADS: tl.constexpr = KV_HEADS * GROUP
    ALL_HEADS: tl.constexpr = HEADS + 2 * KV_HEADS
    DTYPE: tl.constexpr = qkv.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < num_tokens * ALL_HEADS
    token = (row // ALL_HEADS).to(tl.int64)
    head = row % ALL_HEADS
    is_query = head < HEADS
    is_value = (head >= HEADS + KV_HEADS)[:, None]
    kv_head = tl.where(is_query, head // GROUP, (head - HEADS) % KV_HEADS)

    # where each row comes from and where it goes
    source = qkv + row.to(tl.int64)[:, None] * D
    query_row = query + ((kv_head * num_tokens + token) * GROUP + head % GROUP)[:, None] * D
    slot = tl.load(slot_mapping + token, real, other=-1)
    cache_row = tl.where(is_value, values, keys) + (slot * KV_HEADS + kv_head)[:, None] * D
    to_query = (real & is_query)[:, None]
    to_cache = (real & (is_query == 0) & (slot >= 0))[:, None]
    if key_scale is None:
        scale = None
    else:
        scale = tl.where(is_value, tl.load(value_scale + kv_head)[:, None], tl.load(key_scale + kv_head)[:, None])
    token, is_query, real = token[:, None], is_query[:, None], real[:, None]

    squares = tl.zeros((ROWS, 1), tl.float32)
    if HALF_BLOCK > 0:
        turning = tl.arange(0, HALF_BLOCK)[None, :]
        turns = real & (turning < HALF)
        first = _wide(source, turning, turns)
        second = _wide(source + HALF, turning, turns)
        squares += tl.sum(first * first + second * second, 1, keep_dims=True)
    if REST_BLOCK > 0:
        resting = tl.arange(0, REST_BLOCK)[None, :]
        rests = real & (resting < D - 2 * HALF)
        rest = _wide(source + 2 * HALF, resting, rests)
        squares += tl.sum(rest * rest, 1, keep_dims=True)

    factor = tl.rsqrt(squares / D + eps)
    if query_weight is None:
        weight = None
    else:
        weight = tl.where(is_query, query_weight, key_weight)
    if HALF_BLOCK > 0:
        angle_cos = _wide(cos + token * HALF, turning, turns)
        angle_sin = _wide(sin + token * HALF, turning, turns)
        if weight is None:
            x, y = first, second
        else:
            x = _normed(first, factor, weight, turning, turns, DTYPE)
            y = _normed(second, factor, weight + HALF, turning, turns, DTYPE)
        first = tl.where(is_value, first, x * angle_cos - y * angle_sin)
        second = tl.where(is_value, second, y * angle_cos + x * angle_sin)
        _write(first, turning, turns, to_query, query_row, to_cache, cache_row, scale, DTYPE)
        _write(second, turning, turns, to_query, query_row + HALF, to_cache, cache_row + HALF, scale, DTYPE)
    if REST_BLOCK > 0:
        if weight is not None:
            rest = tl.where(is_value, rest, _normed(rest, factor, weight + 2 * HALF, resting, rests, DTYPE))
        _write(rest, resting, rests, to_query, query_row + 2 * HALF, to_cache, cache_row + 2 * HALF, scale, DTYPE)


def rope_store_kv(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor | None,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> torch.Tensor:
    """See `quire.kernels.attention.rope_store_kv`."""
    if slot_mapping is None:
        qkv, slot_mapping = as_padding(qkv, keys)
    heads = HeadLayout.of(qkv, keys, cos.shape[1])
    query = qkv.new_empty((heads.num_kv_heads, qkv.shape[0], heads.group, heads.size))
    given = (qkv, cos, sin, keys, values, slot_mapping, query_weight, key_weight, eps, key_scale, value_scale)
    launch(given, query, heads, _tiles(heads, qkv.dtype, keys.dtype))
    return query


def launch(given: tuple[Any, ...], query: torch.Tensor, heads: HeadLayout, tiles: Tiles) -> None:
    """`rope_store_kv` with given tiles, its queries written into `query`."""
    num_tokens = query.shape[1]
    if num_tokens:
        num_rows = num_tokens * heads.num_kv_heads * (heads.group + 2)
        rope_store_kv_kernel[(triton.cdiv(num_rows, tiles["rows"]),)](
            *given, query, num_tokens, **rope_constants(heads, tiles), num_warps=tiles["num_warps"]
        )


def rope_constants(heads: HeadLayout, tiles: Tiles) -> dict[str, int]:
    """Compile-time arguments of the kernel."""
    names = ("KV_HEADS", "GROUP", "D", "HALF", "HALF_BLOCK", "REST_BLOCK", "ROWS")
    return dict(zip(names, (*heads, *heads.blocks(), tiles["rows"]), strict=True))


@functools.cache
def _tiles(heads: HeadLayout, dtype: torch.dtype, cache: torch.dtype) -> Tiles:
    return tile("rope_store_kv", rope_shape_key(heads, dtype, cache), rope_tiles(heads))
