"""The gated activation kernel against its reference, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.linear.activation import gated_activation
from quire.kernels.gpu.linear.tiles import ACTIVATION_TILES
from quire.kernels.linear.activation import GATES, gated_activation_reference

TILE = ACTIVATION_TILES["block"]
pytestmark = pytest.mark.usefixtures("poisoned_results")


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(GATES)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 4),
    st.sampled_from([1, 7, 96, TILE, TILE + 1, 2 * TILE + 8]),
    st.integers(0, 99),
)
def test_each_kind_equals_the_reference(kind, dtype, num_tokens, size, seed):
    x = (4 * torch.randn((num_tokens, 2 * size), generator=torch.Generator().manual_seed(seed))).to(dtype)
    actual, expected = gated_activation(x, kind), gated_activation_reference(x, kind)
    assert (actual.dtype, actual.shape) == (dtype, (num_tokens, size))
    tolerance = max(1e-4, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(GATES))
def test_gates_far_from_zero_open_or_shut_without_overflow(kind):
    gate = torch.tensor([[-1e20, -200.0, -30.0, 0.0, 30.0, 200.0, 1e20]])
    shut_or_open = gated_activation(torch.cat((gate, torch.ones_like(gate)), 1), kind)
    torch.testing.assert_close(shut_or_open, gate.clamp(min=0.0), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("kind", sorted(GATES))
def test_nan_stays_in_its_place(kind):
    x = torch.ones((3, 16))
    x[0, 2] = x[2, 8 + 5] = torch.nan
    assert gated_activation(x, kind).isnan().nonzero().tolist() == [[0, 2], [2, 5]]
