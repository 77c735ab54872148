"""Attention in both directions within windows: prompts longer than what one product takes, each by itself."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.worker.models.library.attention import TILE, attend_both_ways


@pytest.mark.parametrize("window", [1, 5, TILE, 3 * TILE])
def test_tokens_of_long_prompts_see_all_around_them_in_their_window(window):
    generator, lengths = torch.Generator().manual_seed(0), (2 * TILE + 3, 1, TILE)
    query, key, value = (torch.randn(1, heads, sum(lengths), 8, generator=generator) for heads in (4, 2, 2))
    mixed = attend_both_ways(query, key, value, SimpleNamespace(query_lens_host=lengths), 0.5, window)
    expected = []
    for q, k, v in zip(*(one.split(lengths, 2) for one in (query, key, value)), strict=True):
        places = torch.arange(q.shape[2])
        near = (places[:, None] - places).abs() < window
        expected.append(scaled_dot_product_attention(q, k, v, near, scale=0.5, enable_gqa=True).transpose(1, 2))
    torch.testing.assert_close(mixed, torch.cat(expected, 1))
