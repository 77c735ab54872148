"""The embedding kernel against its reference, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.linear.embedding import embed_shard
from quire.kernels.gpu.linear.tiles import EMBEDDING_COLUMNS
from quire.kernels.linear.embedding import embed_shard_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")


@settings(max_examples=60)
@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.lists(st.integers(0, 39), max_size=6),
    st.sampled_from([1, 5, 64, EMBEDDING_COLUMNS, EMBEDDING_COLUMNS + 3]),
    st.integers(0, 40),
    st.integers(0, 12),
)
def test_tokens_of_the_share_are_looked_up_and_others_are_zero(dtype, token_ids, size, first, count):
    weight = torch.full((12, size), torch.nan, dtype=dtype)
    weight[:count] = torch.randn((count, size), generator=torch.Generator().manual_seed(count)).to(dtype)
    tokens = torch.tensor(token_ids, dtype=torch.int64)
    actual = embed_shard(tokens, weight, first, count)
    assert actual.dtype == dtype
    assert torch.equal(actual, embed_shard_reference(tokens, weight, first, count))


def test_ids_far_outside_read_nothing():
    weight = torch.full((2, 8), torch.nan)
    assert torch.equal(embed_shard(torch.tensor([2**62, -1, 2**40]), weight, 0, 2), torch.zeros((3, 8)))
