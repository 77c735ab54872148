"""Attention in both directions for CPUs: prefill's products, over queries, keys and values where the QKV layer left
them. Scores exist in tiles only, however long a row is.
"""

import torch

from quire.kernels.cpu.native import dtype_code, native


def encoder_attention(
    qkv: torch.Tensor, starts: torch.Tensor, lengths_host: tuple[int, ...], num_heads: int, scale: float
) -> torch.Tensor:
    """See kernels/attention/encoder_attention.py. Tokens of padding are left as they are: uninitialised."""
    num_tokens, width = qkv.shape
    out = qkv.new_empty((num_tokens, width // 3))
    native().quire_encoder_attention(
        dtype_code("qkv", qkv),
        qkv.data_ptr(),
        starts.data_ptr(),
        out.data_ptr(),
        len(lengths_host),
        num_heads,
        width // (3 * num_heads),
        scale,
        torch.get_num_threads(),
    )
    return out
