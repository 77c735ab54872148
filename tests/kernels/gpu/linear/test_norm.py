"""The norm kernels against their reference, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.linear.norm import add_rms_norm, rms_norm
from quire.kernels.gpu.linear.tiles import WIDEST_NORM
from quire.kernels.linear.norm import add_rms_norm_reference, rms_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def close(actual, expected):
    """Within 1e-4 of float32, two steps of the last place of 16-bit numbers."""
    assert actual.dtype == expected.dtype
    tolerance = max(1e-4, 2 * torch.finfo(actual.dtype).eps)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=1e-5, equal_nan=True)


def randn(*shape, seed, dtype):
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(max_examples=100)
@given(
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(0, 9),
    st.sampled_from([1, 3, 16, 33, 80, 128, 1024, 2560]),
    st.integers(0, 99),
)
def test_norm_and_sum_equal_the_reference(dtype, wide_gains, num_rows, size, seed):
    x, residual = randn(2, num_rows, size, seed=seed, dtype=dtype)
    weight = randn(size, seed=seed + 1, dtype=torch.float32 if wide_gains else dtype)
    close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    expected, expected_total = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert torch.equal(total, expected_total)
    close(normed, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [WIDEST_NORM, WIDEST_NORM + 1, 2 * WIDEST_NORM + 8])
def test_rows_wider_than_a_program_are_passed_over_twice(size, dtype):
    x, residual = randn(2, 2, size, seed=0, dtype=dtype)
    weight = randn(size, seed=1, dtype=dtype)
    close(rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, residual + x)
    close(normed, rms_norm_reference(total, weight, 1e-6))


def test_leading_dimensions_are_rows():
    x, weight = randn(2, 3, 8, seed=0, dtype=torch.float32), randn(8, seed=1, dtype=torch.float32)
    close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("size", [64, WIDEST_NORM + 1])
def test_nan_stays_in_its_row(size):
    x, residual = randn(2, 5, size, seed=0, dtype=torch.float32)
    x[1, 3], residual[4, 0] = torch.nan, torch.inf
    weight = torch.ones(size)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    close(normed, add_rms_norm_reference(x, residual, weight, 1e-5)[0])
    assert normed[[0, 2, 3]].isfinite().all()
    assert rms_norm(x, weight, 1e-5).isnan().all(1).tolist() == [False, True, False, False, False]
    assert total.isfinite().sum() == total.numel() - 2


def test_half_precision_does_not_overflow():
    x = torch.full((1, 64), 60000.0, dtype=torch.float16)
    assert torch.equal(rms_norm(x, torch.ones(64).half(), 1e-5), torch.ones((1, 64)).half())
