"""Linear layers through oneDNN: a packed weight stands for the plain one, in every dtype, for any number of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.linear import linear, linear_reference, norm_linear, norm_linear_reference
from quire.kernels.pack import pack

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tolerance(dtype):
    eps = torch.finfo(dtype).eps
    return {"rtol": 4 * eps, "atol": 100 * eps}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    rows=st.integers(0, 40), inputs=st.integers(1, 100), outputs=st.integers(1, 100), has_bias=st.booleans(),
    dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_packed_weight_gives_the_product_of_the_plain_one(rows, inputs, outputs, has_bias, dtype, seed):
    x, weight = random(rows, inputs, seed=seed, dtype=dtype), random(outputs, inputs, seed=seed + 1, dtype=dtype)
    bias = random(outputs, seed=seed + 2, dtype=dtype) if has_bias else None
    exact = linear_reference(x.double(), weight.double(), None if bias is None else bias.double())
    for form in (weight, pack(weight)):
        out = linear(x, form, bias)
        assert (out.dtype, out.shape, out.is_contiguous()) == (dtype, (rows, outputs), True)
        torch.testing.assert_close(out.double(), exact, **tolerance(dtype))


def test_one_packed_copy_serves_every_number_of_rows():
    weight = random(96, 160, seed=1)
    packed = pack(weight)
    for rows in (1, 2, 3, 15, 16, 17, 128, 700):
        x = random(rows, 160, seed=rows)
        torch.testing.assert_close(linear(x, packed, None), linear_reference(x, weight, None), **tolerance(x.dtype))


def test_packing_in_float32_leaves_the_weight_alone_and_keeps_shape_dtype_and_size():
    weight = random(64, 48)
    before = weight.clone()
    packed = pack(weight)
    assert packed.is_mkldnn
    assert (packed.shape, packed.dtype, packed.nbytes) == (weight.shape, weight.dtype, weight.nbytes)
    weight.zero_()
    assert torch.equal(packed.to_dense(), before)


def test_a_dtype_that_onednn_does_not_know_stays_as_it_is():
    weight = random(8, 4, dtype=torch.float64)
    assert pack(weight) is weight


@pytest.mark.parametrize("gate", [None, "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("packs", [False, True])
def test_norm_linear_takes_either_weight(gate, dtype, packs):
    x, residual, norm = random(7, 40, dtype=dtype), random(7, 40, seed=1, dtype=dtype), random(40, seed=2, dtype=dtype)
    weight, bias = random(26, 40, seed=3, dtype=dtype) / 6, random(26, seed=4, dtype=dtype)
    form = pack(weight) if packs else weight
    for other in (None, residual):
        out, total = norm_linear(x, other, norm, 1e-5, form, bias, gate)
        expected, expected_total = norm_linear_reference(x, other, norm, 1e-5, weight, bias, gate)
        assert torch.equal(total, expected_total)
        torch.testing.assert_close(out, expected, rtol=8 * torch.finfo(dtype).eps, atol=64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other_row(bad):
    x, packed = random(20, 64), pack(random(40, 64, seed=1))
    clean = linear(x, packed, None)
    x[11, 5] = bad
    spoilt = linear(x, packed, None)
    assert not spoilt[11].isfinite().any()
    rest = [row for row in range(20) if row != 11]
    assert torch.equal(spoilt[rest], clean[rest])


def test_a_packed_weight_of_the_wrong_shape_is_refused_by_name():
    with pytest.raises(ValueError, match="weight: expected shape"):
        linear(random(2, 5), pack(random(3, 4)), None)
