"""Rotary positions of queries and keys for CPUs: a token's heads one after another, by angles kept in registers."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def rope_in_place(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
    """See kernels/attention/rope_in_place.py."""
    num_tokens, width = qkv.shape
    native().quire_rope_in_place(
        dtype_code("qkv", qkv),
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        num_tokens,
        num_heads,
        width // (3 * num_heads),
        cos.shape[1],
        torch.get_num_threads(),
    )
