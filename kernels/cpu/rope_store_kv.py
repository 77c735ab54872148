"""Norm of the heads, rotary positions, KV write and query layout for CPUs: each token's row is read once."""

import torch

from quire.kernels.attention.int8_rows import head_dim_of
from quire.kernels.cpu.native import address, dtype_code, native


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
    """See kernels/attention/rope_store_kv.py."""
    num_tokens, width = qkv.shape
    kv_heads, head_dim = keys.shape[2], head_dim_of(keys)
    groups = width // head_dim // kv_heads - (0 if slot_mapping is None else 2)
    query = qkv.new_empty((kv_heads, num_tokens, groups, head_dim))
    is_wide = query_weight is not None and query_weight.dtype != qkv.dtype
    library = native()
    (library.quire_rope_store_kv_wide if is_wide else library.quire_rope_store_kv)(
        dtype_code("qkv", qkv),
        dtype_code("keys", keys),
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        address(slot_mapping),
        address(query_weight),
        address(key_weight),
        address(key_scale),
        address(value_scale),
        query.data_ptr(),
        num_tokens,
        kv_heads,
        groups,
        head_dim,
        cos.shape[1],
        eps,
        torch.get_num_threads(),
    )
    return query
