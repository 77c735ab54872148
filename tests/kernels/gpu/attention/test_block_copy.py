"""The block copy kernel against its reference, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.block_copy import copy_blocks_reference
from quire.kernels.gpu.attention.block_copy import copy_blocks
from quire.kernels.gpu.attention.tiles import COPY_BYTES


def same(first, second):
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


@settings(max_examples=60)
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]),
    st.permutations(range(7)),
    st.integers(0, 5),
    st.sampled_from([(1, 1, 1), (4, 2, 3), (16, 2, 64), (16, 3, 80)]),
    st.data(),
)
def test_destinations_take_the_bytes_of_their_sources_and_no_other_block_changes(dtype, order, num, shape, data):
    destinations = order[:num]
    sources = [data.draw(st.sampled_from(order[num:])) for _ in destinations]
    made = torch.randn((2, 7, *shape), generator=torch.Generator().manual_seed(num))
    made[:, :, 0, 0, 0] = torch.nan
    keys, values = made.to(dtype)
    expected_keys, expected_values = keys.clone(), values.clone()
    columns = torch.tensor(sources).long(), torch.tensor(destinations).long()
    copy_blocks(keys, values, *columns)
    copy_blocks_reference(expected_keys, expected_values, *columns)
    assert same(keys, expected_keys)
    assert same(values, expected_values)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_blocks_around_the_bytes_of_one_program_are_copied_whole(extra):
    cache = (
        torch.arange(2 * 3 * (COPY_BYTES + extra))
        .view(2, 3, 1, 1, COPY_BYTES + extra)
        .to(torch.uint8)
        .view(torch.float8_e4m3fn)
    )
    before = cache.clone()
    copy_blocks(*cache, torch.tensor([2]), torch.tensor([0]))
    assert same(cache[:, 0], before[:, 2])
    assert same(cache[:, 1:], before[:, 1:])
