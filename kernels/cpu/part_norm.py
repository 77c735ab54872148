"""RMS norm of the queries and of the keys of all heads, for CPUs: a pass over the rows for either half of it."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def part_squares(qkv: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """See kernels/attention/part_norm.py."""
    rows, width = qkv.shape
    out = qkv.new_empty((rows, 2), dtype=torch.float32)
    native().quire_part_squares(
        dtype_code("qkv", qkv),
        qkv.data_ptr(),
        out.data_ptr(),
        rows,
        width,
        queries,
        keys,
        torch.get_num_threads(),
    )
    return out


def part_norm(
    qkv: torch.Tensor,
    squares: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    eps: float,
    num_ranks: int,
) -> torch.Tensor:
    """See kernels/attention/part_norm.py."""
    rows, width = qkv.shape
    out = torch.empty_like(qkv)
    native().quire_part_norm(
        dtype_code("qkv", qkv),
        qkv.data_ptr(),
        squares.data_ptr(),
        query_weight.data_ptr(),
        key_weight.data_ptr(),
        out.data_ptr(),
        rows,
        width,
        query_weight.shape[0],
        key_weight.shape[0],
        num_ranks,
        eps,
        torch.get_num_threads(),
    )
    return out
