"""Paged attention for CPUs: keys and values are read where they lie, online softmax in float32 (Milakov and
Gimelshein, 2018), decode and prefill in one list of work. What a row computes depends on nothing but the row.

Over a cache of int8 the scores of decode rows are integer products, which take a fifth off their time (AVX-512 with
VNNI); softmax weights stay float32 and meet widened values, so that nothing else is rounded. Prompts in bfloat16 are
multiplied in bfloat16 over caches of 8 bits, too, where the processor has such products.
"""

import torch

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.attention.window import Chunk
from quire.kernels.cpu.native import address, dtype_code, native

_NO_WINDOW = 1 << 62


def paged_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    rule: AttentionRule,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """See kernels/attention/attention.py. Tokens of padding are left as they are: uninitialised."""
    kv_heads, num_tokens, groups, head_dim = query.shape
    out = query.new_empty((num_tokens, kv_heads * groups * head_dim))
    native().quire_paged_attention(
        query.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        out.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.slots.data_ptr(),
        batch.seq_lens.data_ptr(),
        batch.query_starts.data_ptr(),
        address(sinks),
        address(key_scale),
        address(value_scale),
        batch.seq_lens.shape[0],
        num_tokens,
        kv_heads,
        groups,
        head_dim,
        keys.shape[1],
        batch.block_tables.stride(0),
        rule.window if isinstance(rule.window, int) else _NO_WINDOW,
        rule.scale,
        rule.soft_cap or 0.0,
        dtype_code("query", query),
        dtype_code("keys", keys),
        torch.get_num_threads(),
        rule.window.size if isinstance(rule.window, Chunk) else 0,
        address(batch.last_visible if rule.looks_ahead else None),
    )
    return out
