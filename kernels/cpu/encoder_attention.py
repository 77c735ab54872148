"""Attention in both directions for CPUs: torch's own, row by row.

Its loops are tiled, vectorised and threaded like ours would be, and rows are as long as prompts, so the calls weigh
nothing: a form in C++ would have to beat it at what it is best at.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def encoder_attention(
    qkv: torch.Tensor, starts: torch.Tensor, lengths_host: tuple[int, ...], num_heads: int, scale: float
) -> torch.Tensor:
    """See kernels/attention/encoder_attention.py."""
    num_tokens, width = qkv.shape
    head_dim = width // (3 * num_heads)
    query, key, value = qkv.view(num_tokens, 3, num_heads, head_dim).permute(1, 2, 0, 3)
    out = qkv.new_empty((num_tokens, width // 3))
    heads = out.view(num_tokens, num_heads, head_dim)
    stop = 0
    for length in lengths_host:
        start, stop = stop, stop + length
        q, k, v = (side[None, :, start:stop] for side in (query, key, value))
        heads[start:stop] = scaled_dot_product_attention(q, k, v, scale=scale)[0].transpose(0, 1)
    return out
