"""Attention against the paged cache: store this step's keys and values, then look back over each sequence."""

from dataclasses import dataclass

import torch

from quire.kernels.attention.attention import AttentionRule, paged_attention
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.worker.batch import ForwardBatch
from quire.worker.memory.kv_cache import LayerCache


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm of each query and key head before it is rotated: gains [head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


def attend(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    norm: HeadNorm | None,
    cache: LayerCache,
    batch: ForwardBatch,
    rule: AttentionRule,
) -> torch.Tensor:
    """qkv [T, (H + 2K) * D] of the step; rotation: cos and sin of its positions -> [T, H * D]."""
    cos, sin = rotation
    keys, values, key_scale, value_scale, group = cache
    rows = batch.groups[group]
    query = rope_store_kv(
        qkv,
        cos,
        sin,
        keys,
        values,
        rows.slot_mapping,
        None if norm is None else norm.query,
        None if norm is None else norm.key,
        0.0 if norm is None else norm.eps,
        key_scale,
        value_scale,
    )
    return paged_attention(query, keys, values, rows.attention, rule, None, key_scale, value_scale)
