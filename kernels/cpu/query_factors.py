"""Queries that count more with their position, for CPUs: native calls, which a tape can note."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def query_factors(positions: torch.Tensor, ahead: int, length: int, beta: float) -> torch.Tensor:
    """See kernels/attention/query_factors.py."""
    out = positions.new_empty(positions.shape, dtype=torch.float32)
    native().quire_query_factors(positions.data_ptr(), ahead, length, beta, out.data_ptr(), positions.shape[0])
    return out


def scale_queries(query: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """See kernels/attention/query_factors.py."""
    kv_heads, num_tokens, groups, head_dim = query.shape
    out = torch.empty_like(query)
    native().quire_scale_tokens(
        dtype_code("query", query),
        query.data_ptr(),
        factors.data_ptr(),
        out.data_ptr(),
        kv_heads,
        num_tokens,
        groups * head_dim,
        torch.get_num_threads(),
    )
    return out
