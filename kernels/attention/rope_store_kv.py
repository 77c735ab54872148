"""The way from the QKV product to attention: norm of the heads, rotary positions, KV write, and the query's layout.

Shape legend: T tokens, K key-value heads, G query heads of each, H = K * G, D head dim.
"""

from typing import Final

import torch
from torch.nn.functional import pad

from quire.kernels.attention.int8_rows import head_dim_of, quantize_rows
from quire.kernels.checks import CACHES, FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.norm import rms_norm_reference

NOWHERE: Final = -1
"""Slot of what is not stored."""
LARGEST_E4M3 = 448.0
"""The largest number of torch.float8_e4m3fn, which has no infinity: what lies beyond must be clamped first."""


def rope_store_kv_reference(
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
    """Write the step's keys and values to the cache, in place, and return its queries as [K, T, G, D].

    qkv [T, (H + 2K) * D] holds H query heads, K key heads, K value heads; query head k * G + g belongs to key-value
    head k. With weights [D] (both or none) each query and key head is first normalised by kernels/linear/norm.py. cos,
    sin float32 [T, half] turn the pairs (i, i + half) of a head in float32; elements from 2 * half on stay (partial
    rotary). keys, values [num_blocks, block_size, K, D] take token t at `slot_mapping[t]` = block * block_size +
    offset, int64 [T], no two alike; a token of padding has a negative one, and nothing is written for it. A cache of
    float8_e4m3fn needs scales, float32 [K], and holds `clamp(x / scale, -448, 448)`; one of int8 makes the rows of
    int8_rows.py. Without a slot_mapping the cache is another layer's, which has stored this step's: qkv [T, H * D]
    holds queries alone, and nothing is written.
    """
    if slot_mapping is None:
        qkv, slot_mapping = as_padding(qkv, keys)
    num_tokens, num_kv_heads, head_dim = qkv.shape[0], keys.shape[2], head_dim_of(keys)
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    heads = qkv.view(num_tokens, num_heads + 2 * num_kv_heads, head_dim)
    query, key, value = heads.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if query_weight is not None and key_weight is not None:
        query, key = rms_norm_reference(query, query_weight, eps), rms_norm_reference(key, key_weight, eps)
    _store(rotate(key, cos, sin), keys, slot_mapping, key_scale)
    _store(value, values, slot_mapping, value_scale)
    grouped = rotate(query, cos, sin).view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return grouped.transpose(0, 1).contiguous()


def as_padding(queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries alone, [T, H * D], as a product with keys and values [T, (H + 2K) * D], and slots of padding, [T]."""
    nowhere = torch.full((len(queries),), NOWHERE, dtype=torch.int64, device=queries.device)
    return pad(queries, (0, 2 * keys.shape[2] * head_dim_of(keys))), nowhere


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of x [T, heads, D] by its position's angle (Su et al., 2021)."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((rotated, x[..., 2 * half :]), dim=-1)


def _store(x: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor, scale: torch.Tensor | None) -> None:
    """Put x [T, K, D] into its slots, in the cache's dtype."""
    if scale is not None:
        x = (x.float() / scale[:, None]).clamp(-LARGEST_E4M3, LARGEST_E4M3)
    kept = slot_mapping >= 0
    # as bytes, because torch cannot index a tensor of 8-bit floats
    rows = (quantize_rows(x[kept]) if cache.dtype == torch.int8 else x[kept].to(cache.dtype)).view(torch.uint8)
    cache.view(torch.uint8).flatten(0, 1).index_copy_(0, slot_mapping[kept], rows)


def _check(
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
) -> None:
    device = qkv.device
    check_tensor("qkv", qkv, (None, None), FLOATS, device)
    check_tensor("keys", keys, (None, None, None, None), CACHES, device)
    check_tensor("values", values, tuple(keys.shape), (keys.dtype,), device)
    num_tokens, width = qkv.shape
    num_kv_heads, head_dim = keys.shape[2], head_dim_of(keys)
    parts, others = ("queries", 0) if slot_mapping is None else ("queries, keys and values", 2 * num_kv_heads)
    num_heads, rest = divmod(width - others * head_dim, head_dim)
    if num_heads < num_kv_heads or num_heads % num_kv_heads or rest:
        raise ValueError(f"qkv: {width} columns are not {parts} of {num_kv_heads} key-value heads of {head_dim}")
    check_tensor("cos", cos, (num_tokens, None), (torch.float32,), device)
    check_tensor("sin", sin, tuple(cos.shape), (torch.float32,), device)
    if 2 * cos.shape[1] > head_dim:
        raise ValueError(f"cos: rotates {2 * cos.shape[1]} elements of a head that has {head_dim}")
    check_contiguous(qkv=qkv, cos=cos, sin=sin, keys=keys, values=values)
    if slot_mapping is not None:
        check_tensor("slot_mapping", slot_mapping, (num_tokens,), (torch.int64,), device)
        check_contiguous(slot_mapping=slot_mapping)
    _check_pair("query_weight", query_weight, "key_weight", key_weight, head_dim, (qkv.dtype, torch.float32), device)
    if query_weight is not None and eps <= 0.0:
        raise ValueError(f"eps: must be positive, got {eps}")
    _check_pair("key_scale", key_scale, "value_scale", value_scale, num_kv_heads, (torch.float32,), device)
    if (key_scale is not None) != (keys.dtype == torch.float8_e4m3fn):
        raise ValueError(f"key_scale: goes with a cache of float8_e4m3fn and with no other, the cache is {keys.dtype}")


def _check_pair(
    first_name: str,
    first: torch.Tensor | None,
    second_name: str,
    second: torch.Tensor | None,
    size: int,
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Two vectors that come together or not at all."""
    if first is None and second is None:
        return
    if first is None or second is None:
        missing, given = (first_name, second_name) if first is None else (second_name, first_name)
        raise ValueError(f"{missing}: must be given with {given}, or neither")
    check_tensor(first_name, first, (size,), dtypes, device)
    check_tensor(second_name, second, (size,), (first.dtype,), device)
    check_contiguous(**{first_name: first, second_name: second})


rope_store_kv = Operation(
    rope_store_kv_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.attention.rope_store_kv:rope_store_kv",
        "cpu": "quire.kernels.cpu.rope_store_kv:rope_store_kv",
    },
)
