"""Attention in both directions as the library's modules call it, over the whole prompts of a step."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.attention.encoder_attention import encoder_attention

TILE = 256
"""Queries that a product with the keys around them takes at a time."""


def attend_both_ways(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: PagedBatch, scale: float, window: int | None
) -> torch.Tensor:
    """query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D]. With a window a token sees those less than
    `window` tokens away."""
    num_heads, num_tokens, head_dim = query.shape[1:]
    shared = num_heads // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    heads = torch.cat([one[0].transpose(0, 1) for one in (query, key, value)], 1)
    if window is None:
        flat = heads.view(num_tokens, -1)
        out = encoder_attention(flat, rows.query_starts, rows.query_lens_host, num_heads, scale)
        return out.view(1, num_tokens, num_heads, head_dim)
    mixed = query.new_zeros((num_tokens, num_heads, head_dim))
    stop = 0
    for length in rows.query_lens_host:
        start, stop = stop, stop + length
        for first in range(start, stop, TILE):
            last, low = min(first + TILE, stop), max(start, first - window + 1)
            high = min(stop, last + window - 1)
            places = torch.arange(low, high, device=query.device)
            near = (places[first - low : last - low, None] - places).abs() < window
            parts = query[:, :, first:last], key[:, :, low:high], value[:, :, low:high]
            mixed[first:last] = scaled_dot_product_attention(*parts, near, scale=scale)[0].transpose(0, 1)
    return mixed[None]
