"""Write the step's keys and values into their places of the paged cache."""

import torch

from quire.kernels.checks import FLOATS, check_tensor
from quire.kernels.dispatch import Operation


def store_kv_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Token t goes to slot `slot_mapping[t]`, in place.

    key, value [T, K, D]; keys, values [num_blocks, block_size, K, D]; slot_mapping int64 [T], each
    `block * block_size + offset`, inside the cache and no two alike. The cache's dtype wins.
    """
    keys.view(-1, *key.shape[1:]).index_copy_(0, slot_mapping, key.to(keys.dtype))
    values.view(-1, *value.shape[1:]).index_copy_(0, slot_mapping, value.to(values.dtype))


def _check(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    num_tokens, num_kv_heads, head_dim = key.shape
    check_tensor("key", key, (num_tokens, num_kv_heads, head_dim), FLOATS, key.device)
    check_tensor("value", value, tuple(key.shape), (key.dtype,), key.device)
    check_tensor("keys", keys, (None, None, num_kv_heads, head_dim), FLOATS, key.device)
    check_tensor("values", values, tuple(keys.shape), (keys.dtype,), key.device)
    check_tensor("slot_mapping", slot_mapping, (num_tokens,), (torch.int64,), key.device)
    for name, cache in (("keys", keys), ("values", values)):
        if not cache.is_contiguous():
            raise ValueError(f"{name}: must be contiguous")


store_kv = Operation(store_kv_reference, _check)
