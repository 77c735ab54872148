"""Rows of a cache of 8-bit integers: a token's head as codes, and behind them the scale of that token and head.

A row of D elements is int8 [D + 4], of which the last four are the bytes of a float32.
"""

import torch

from quire.kernels.linear.linear_int8 import quantize

SCALE_BYTES = 4


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a cached head of `head_dim` numbers."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def head_dim_of(cache: torch.Tensor) -> int:
    """Numbers of a head in a cache [..., row_width]."""
    return cache.shape[-1] - SCALE_BYTES if cache.dtype == torch.int8 else cache.shape[-1]


def quantize_rows(x: torch.Tensor) -> torch.Tensor:
    """x [..., D] -> int8 [..., D + 4]; a row with a NaN or an infinity has a scale that is none."""
    codes, scales = quantize(x.flatten(0, -2))
    rows = torch.cat((codes, scales[:, None].view(torch.int8)), dim=-1)
    return rows.view(*x.shape[:-1], row_width(x.shape[-1], torch.int8))


def dequantize_rows(rows: torch.Tensor) -> torch.Tensor:
    """int8 [..., D + 4] -> float32 [..., D]"""
    codes, scales = rows.split_with_sizes((head_dim_of(rows), SCALE_BYTES), dim=-1)
    return codes.float() * scales.contiguous().view(torch.float32)
