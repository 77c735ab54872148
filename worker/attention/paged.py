"""Attention against the paged cache: store this step's keys and values, then look back over each sequence."""

import torch

from quire.kernels.attention import AttentionRule, paged_attention
from quire.kernels.kv_store import store_kv
from quire.worker.batch import ForwardBatch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: ForwardBatch,
    rule: AttentionRule,
) -> torch.Tensor:
    """query [T, H, D], key and value [T, K, D] of the step; keys and values are one layer's cache -> [T, H, D]."""
    store_kv(key, value, keys, values, batch.slot_mapping)
    return paged_attention(
        query,
        keys,
        values,
        batch.block_tables,
        batch.seq_lens,
        batch.query_starts,
        batch.num_decodes,
        batch.query_lens_host,
        batch.seq_lens_host,
        rule,
    )
