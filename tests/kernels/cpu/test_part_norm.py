"""Norms over the heads of all ranks on CPUs against their references."""

import pytest
import torch

from quire.kernels.attention.part_norm import part_norm, part_norm_reference, part_squares, part_squares_reference

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(64, 32), (20, 12)])
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_parts_are_normalised_as_by_the_reference(dtype, sizes, tokens):
    generator = torch.Generator().manual_seed(tokens)
    width = sum(sizes) + sizes[1]
    qkv = torch.randn((tokens, width), generator=generator).to(dtype)
    weights = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    squares = part_squares(qkv, *sizes)
    torch.testing.assert_close(squares, part_squares_reference(qkv, *sizes))
    got = part_norm(qkv, 2 * squares, *weights, 1e-5, 2)
    torch.testing.assert_close(got, part_norm_reference(qkv, 2 * squares, *weights, 1e-5, 2))
    assert torch.equal(got[:, sum(sizes) :], qkv[:, sum(sizes) :])


def test_two_ranks_normalise_over_the_heads_of_both():
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn((5, size), generator=generator) for size in (32, 32, 16, 16, 16, 16)]
    of_ranks = [torch.cat(parts[rank::2], dim=1) for rank in range(2)]
    squares = sum(part_squares(qkv, 32, 16) for qkv in of_ranks)
    whole = torch.cat(parts, dim=1)
    queries, keys = torch.ones(32), torch.ones(16)
    wanted = part_norm(whole, part_squares(whole, 64, 32), torch.ones(64), torch.ones(32), 1e-5, 1)
    got = [part_norm(qkv, squares, queries, keys, 1e-5, 2) for qkv in of_ranks]
    torch.testing.assert_close(torch.cat([one[:, :32] for one in got], dim=1), wanted[:, :64])
    torch.testing.assert_close(torch.cat([one[:, 32:48] for one in got], dim=1), wanted[:, 64:96])


def test_parts_beyond_the_product_are_refused():
    with pytest.raises(ValueError, match="queries: 8 and 9 keys do not lie in 16 columns"):
        part_squares(torch.zeros(2, 16), 8, 9)
