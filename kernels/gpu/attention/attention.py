"""Attention over a paged cache on GPUs: one body for rows that run several tokens, one for rows that run one."""

import torch

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.gpu.attention.decode import decode
from quire.kernels.gpu.attention.prefill import prefill
from quire.kernels.gpu.attention.tiles import LARGEST_HEAD
from quire.kernels.gpu.chip import chip_of, has_eight_bits


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
    """See `quire.kernels.attention.attention`; `batch.schedules` has one for `rule.window`, of `tile_shape`.

    A step of one-token rows alone launches no prefill. A graph captured from such a step must replay such steps only.
    """
    _refuse(query, keys)
    num_kv_heads, num_tokens, group, head_dim = query.shape
    out = torch.empty((num_tokens, num_kv_heads * group * head_dim), dtype=query.dtype, device=query.device)
    num_rows = batch.seq_lens.shape[0]
    if num_tokens == 0 or num_rows == 0:
        return out
    schedule = batch.schedules.get(rule.window)
    if schedule is None:
        raise ValueError(f"batch.schedules: holds no schedule for window {rule.window}; fill one for each")
    if num_tokens > num_rows or batch.num_decodes < batch.num_tokens:
        prefill(query, keys, values, batch, schedule, rule, sinks, key_scale, value_scale, out)
    decode(query, keys, values, batch, schedule, rule, sinks, key_scale, value_scale, out)
    return out


def _refuse(query: torch.Tensor, keys: torch.Tensor) -> None:
    """Refuse what the CPU can do and these kernels cannot. Raises ValueError."""
    if query.dtype == torch.float64 or keys.dtype == torch.float64:
        raise ValueError("query, keys: float64 runs on the CPU only; use float32, float16 or bfloat16")
    if query.shape[3] > LARGEST_HEAD:
        raise ValueError(f"query: heads of at most {LARGEST_HEAD} elements run on GPUs, got {query.shape[3]}")
    if keys.dtype == torch.float8_e4m3fn and not has_eight_bits((chip := chip_of(query.device)).capability):
        raise ValueError(f"keys: {chip.name} has no 8-bit floats (compute capability 8.9 has); use a cache of 16 bits")
