"""From the QKV product to attention in one launch: norm of the heads, rotation, KV write, and the query's layout.

The product's rows of D elements, one for each token and head, are dealt out in order, ROWS to a program, whatever the
head counts: a program reads one stretch of memory, and each thread 16 bytes of either half of a head, so that the two
elements of a rotating pair meet in one thread. A row is a query, a key or a value; it is turned unless it is a value.

Floor for each token: (H + 2K) * D elements read, H * D written to the query and 2 * K * D to the cache, 8 * half
bytes of angles; some 12 FLOPs for each element, so memory is the limit.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build, has_eight_bits
from quire.kernels.gpu.tuning.tiles import Tiles, Trial, tile

LARGEST_E4M3 = tl.constexpr(448.0)


@triton.jit
def _wide(pointer, column, inside):
    return tl.load(pointer + column, inside, other=0.0).to(tl.float32)


@triton.jit
def _normed(x, factor, weight, column, inside, DTYPE: tl.constexpr):
    """Both factors of the product with the weight, and the product itself, are rounded to the model's type."""
    product = (x * factor).to(DTYPE).to(tl.float32) * _wide(weight, column, inside)
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
def _rope_store_kv_kernel(
    qkv, cos, sin, keys, values, slot_mapping, query_weight, key_weight, eps, key_scale, value_scale, query, num_tokens,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
):  # fmt: skip
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
    slot_mapping: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> torch.Tensor:
    """See `quire.kernels.attention.rope_store_kv`."""
    heads = _Heads.of(qkv, keys, cos.shape[1])
    query = qkv.new_empty((heads.num_kv_heads, qkv.shape[0], heads.group, heads.size))
    given = (qkv, cos, sin, keys, values, slot_mapping, query_weight, key_weight, eps, key_scale, value_scale)
    _launch(given, query, heads, _tiles(heads, qkv.dtype, keys.dtype))
    return query


class _Heads(NamedTuple):
    num_kv_heads: int
    group: int
    size: int
    half: int

    @classmethod
    def of(cls, qkv: torch.Tensor, keys: torch.Tensor, half: int) -> "_Heads":
        num_kv_heads, size = keys.shape[2:]
        return cls(num_kv_heads, qkv.shape[1] // size // num_kv_heads - 2, size, half)

    def blocks(self) -> tuple[int, int]:
        """Elements of each part of a head, padded: of either turning half, and of the rest; 0 for a part it lacks."""
        half, rest = (triton.next_power_of_2(n) if n else 0 for n in (self.half, self.size - 2 * self.half))
        return half, rest


def _launch(given: tuple[Any, ...], query: torch.Tensor, heads: _Heads, tiles: Tiles) -> None:
    num_tokens = query.shape[1]
    if num_tokens:
        num_rows = num_tokens * heads.num_kv_heads * (heads.group + 2)
        _rope_store_kv_kernel[(triton.cdiv(num_rows, tiles["rows"]),)](
            *given, query, num_tokens, **_constants(heads, tiles), num_warps=tiles["num_warps"]
        )


def _constants(heads: _Heads, tiles: Tiles) -> dict[str, int]:
    names = ("KV_HEADS", "GROUP", "D", "HALF", "HALF_BLOCK", "REST_BLOCK", "ROWS")
    return dict(zip(names, (*heads, *heads.blocks(), tiles["rows"]), strict=True))


def default_tiles(heads: _Heads) -> Tiles:
    """Rows enough for each thread to move 8 elements of a head's smallest part, but at most 32 of whole heads."""
    half, rest = heads.blocks()
    for_smallest = 8 * 128 // min(block for block in (half, rest) if block)
    at_most = 32 * 128 // triton.next_power_of_2(2 * half + rest)
    return {"rows": max(1, min(for_smallest, at_most)), "num_warps": 4}


@functools.cache
def _tiles(heads: _Heads, dtype: torch.dtype, cache: torch.dtype) -> Tiles:
    return tile("rope_store_kv", _shape_key(heads, dtype, cache), default_tiles(heads))


def _shape_key(heads: _Heads, dtype: torch.dtype, cache: torch.dtype) -> str:
    return f"k{heads.num_kv_heads} g{heads.group} d{heads.size} half{heads.half} {dtype} to {cache}"


def trials() -> Iterator[Trial]:
    """4096 tokens of Llama-3.1-8B's and Qwen3-8B's heads, without the norm."""
    heads, num_tokens, dtype = _Heads(8, 4, 128, 64), 4096, torch.bfloat16
    yield Trial(
        "rope_store_kv",
        _shape_key(heads, dtype, dtype),
        tuple({"rows": rows, "num_warps": warps} for rows in (8, 16, 32, 64) for warps in (2, 4, 8)),
        num_tokens * (2 * 2 * (heads.group + 2) * heads.num_kv_heads * heads.size + 8 * heads.half),
        functools.partial(_trial, heads, num_tokens, dtype),
    )


def _trial(heads: _Heads, num_tokens: int, dtype: torch.dtype, device: torch.device) -> Callable[[Tiles], object]:
    qkv = torch.randn((num_tokens, heads.num_kv_heads * (heads.group + 2) * heads.size), device=device).to(dtype)
    cos, sin = torch.randn((2, num_tokens, heads.half), device=device)
    keys, values = torch.zeros((2, num_tokens // 16, 16, heads.num_kv_heads, heads.size), device=device, dtype=dtype)
    query = qkv.new_empty((heads.num_kv_heads, num_tokens, heads.group, heads.size))
    slots = torch.arange(num_tokens, device=device)
    given = (qkv, cos, sin, keys, values, slots, None, None, 1e-5, None, None)
    return lambda tiles: _launch(given, query, heads, tiles)


def builds(capability: int) -> Iterator[Build]:
    """Each head size, with and without norm of the heads and 8-bit cache; partial rotation; 16-bit floats."""
    plain: dict[str, Any] = {"norm": False, "cache": "bf16"}
    if capability != 90:
        yield _build(head_dim=128, half=64, **plain)
        yield _build(head_dim=128, half=64, norm=True, cache="bf16")
        if has_eight_bits(capability):
            yield _build(head_dim=128, half=64, norm=False, cache="fp8e4nv")
        return
    for head_dim in (64, 80, 96, 128, 256):
        yield _build(head_dim=head_dim, half=head_dim // 2, **plain)
    yield _build(head_dim=128, half=32, **plain)
    for norm in (False, True):
        yield _build(head_dim=128, half=64, norm=norm, cache="fp8e4nv")
    yield _build(head_dim=128, half=64, norm=True, cache="bf16")
    yield _build(head_dim=128, half=64, norm=False, cache="fp16", dtype="fp16")


def _build(*, head_dim: int, half: int, norm: bool, cache: str, dtype: str = "bf16") -> Build:
    """8 key-value heads of 4 query heads each; other counts differ in a constant."""
    weights = ("query_weight", "key_weight")
    scales = ("key_scale", "value_scale")
    scaled = cache == "fp8e4nv"
    signature = {
        "qkv": f"*{dtype}",
        **dict.fromkeys(("cos", "sin"), "*fp32"),
        **dict.fromkeys(("keys", "values"), f"*{cache}"),
        "slot_mapping": "*i64",
        **(dict.fromkeys(weights, f"*{dtype}") if norm else {}),
        "eps": "fp32",
        **(dict.fromkeys(scales, "*fp32") if scaled else {}),
        "query": f"*{dtype}",
        "num_tokens": "i32",
    }
    heads = _Heads(8, 4, head_dim, half)
    tiles = default_tiles(heads)
    absent = (() if norm else weights) + (() if scaled else scales)
    turning = "" if 2 * half == head_dim else f" half{half}"
    return Build(
        name=f"{'norm ' if norm else ''}rotate d{head_dim}{turning} {dtype} to {cache}",
        kernel=_rope_store_kv_kernel,
        signature=signature,
        constants={**dict.fromkeys(absent), **_constants(heads, tiles)},
        num_warps=tiles["num_warps"],
        divisible=tuple(name for name, type_ in signature.items() if type_.startswith("*")),
    )
