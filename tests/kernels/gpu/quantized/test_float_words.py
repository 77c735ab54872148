"""Products on words of 4-bit floats in the interpreter: every code by every scale to the bit, and sums by float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.quantized import linear_group_words as forms
from quire.kernels.gpu.quantized.group_tiles import group_tiles
from quire.kernels.linear.activation import gated_activation_reference
from quire.kernels.linear.linear_group_words import dequantize_words_reference, pack_words
from quire.kernels.linear.norm import residual_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def layer(seed, kind, size, groups, outputs):
    """Words, scale and unit; e4m3 scales are any number there is, both zeros among them, powers those of a model."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(16, (outputs, size * groups), generator=generator, dtype=torch.uint8)
    if kind == E4M3:
        scale = torch.randint(0x7F, (groups, outputs), generator=generator, dtype=torch.uint8)
        scale += 128 * torch.randint(2, scale.shape, generator=generator, dtype=torch.uint8)
        return pack_words(codes, 4), scale.view(E4M3), torch.rand(outputs, generator=generator) / 448
    scale = torch.randint(115, 128, (groups, outputs), generator=generator, dtype=torch.uint8)
    return pack_words(codes, 4), scale.view(E8M0), None


def meant(words, scale, unit, inputs, dtype):
    return dequantize_words_reference(words, scale, None, 4, inputs, dtype, unit, "e2m1")


def product(x, given, bias=None):
    words, scale, unit = given
    return forms.linear_group_words(x, words, scale, None, bias, 4, unit, "e2m1")


def made(given, inputs, dtype):
    """The weights [inputs, outputs] that a product of many tokens makes."""
    words, scale, unit = given
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "mm", lambda x, weight, out: out.copy_(weight))
        x = torch.zeros((inputs, inputs), dtype=dtype)
        return forms._many_tokens(x, words, scale.view(torch.uint8), None, None, 4, unit, "e2m1")


def rows_of(seed, tokens, inputs, dtype):
    return torch.randn((tokens, inputs), generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(left, right):
    """To the bit, but for the kind of NaN and the sign of a zero."""
    return torch.equal(left.isnan(), right.isnan()) and torch.equal(left.nan_to_num(0.5), right.nan_to_num(0.5))


@pytest.mark.parametrize("kind", [E4M3, E8M0])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("size", [16, 32])
def test_every_code_by_every_scale_is_the_number_that_is_meant(kind, dtype, size):
    """Smallest, largest and zero, and what is no number: an output for each byte, an input for each code."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 2)
    scale = torch.arange(256, dtype=torch.uint8).repeat(32 // size, 1).view(kind)
    unit = torch.linspace(0.5, 2, 256) if kind == E4M3 else None
    given = pack_words(codes, 4), scale, unit
    weight = meant(*given, 32, dtype).T
    assert weight.isnan().any()
    assert same(made(given, 32, dtype), weight)
    if dtype == F32:
        return
    out = product(torch.eye(32, dtype=dtype), given)
    finite = weight.isfinite().all(0)
    assert finite.sum() >= (254 if kind == E4M3 else 140)
    assert same(out[:, finite], weight[:, finite])
    assert out[:, weight.isnan().any(0)].isnan().all()


@settings(max_examples=15)
@given(
    kind=st.sampled_from([E4M3, E8M0]),
    size=st.sampled_from([(16, 2), (16, 6), (16, 18), (32, 1), (32, 9), (64, 3), (96, 3), (128, 3), (288, 1)]),
    outputs=st.integers(1, 80),
    dtype=st.sampled_from([BF16, F16]),
    seed=st.integers(0, 99),
)
def test_each_weight_is_the_one_that_is_meant(kind, size, outputs, dtype, seed):
    """Rows with a single 1 read the columns of the weight; pieces have it as it is."""
    given, inputs = layer(seed, kind, *size, outputs), size[0] * size[1]
    weight = meant(*given, inputs, dtype).T
    picked = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))[:64]
    assert same(product(torch.eye(inputs, dtype=dtype)[picked], given), weight[picked])
    assert same(made(given, inputs, dtype), weight)


@settings(max_examples=20)
@given(
    tokens=st.sampled_from([1, 3, 16, 17, 40, 66]),
    kind=st.sampled_from([E4M3, E8M0]),
    size=st.sampled_from([(16, 2), (16, 22), (32, 5), (64, 9), (96, 1), (128, 5), (320, 1)]),
    half=st.integers(1, 70),
    dtype=st.sampled_from([BF16, F16, F32]),
    gate=st.sampled_from([None, "silu", "gelu_tanh"]),
    has_bias=st.booleans(),
    parts=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_products_agree_with_float64_whatever_the_shape(tokens, kind, size, half, dtype, gate, has_bias, parts, seed):
    (words, scale, unit), inputs = layer(seed, kind, *size, 2 * half), size[0] * size[1]
    x, bias = rows_of(seed, tokens, inputs, dtype), rows_of(seed + 1, 1, 2 * half, dtype)[0] if has_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "group_tiles", lambda *sizes: {**group_tiles(*sizes), "parts": parts})
        out = forms._product(x, words, scale, None, bias, gate, 4, unit, "e2m1")
    is_exact = tokens <= 64 and dtype != F32
    weight = meant(words, scale, unit, inputs, torch.float64 if is_exact else dtype).double()
    step, least = torch.finfo(dtype).eps, torch.finfo(F32).eps * inputs
    offset = 0 if bias is None else bias.double()
    expected = x.double() @ weight.T + offset
    error = least * (x.double().abs() @ weight.abs().T + abs(offset))
    if gate is not None:
        step *= 1 if is_exact else 2  # the gate's input is rounded before
        spread = (error + (0 if is_exact else step * expected.abs())).sum(-1, keepdim=True)
        error = spread * (1 + expected.abs().amax(-1, keepdim=True))
        expected = gated_activation_reference(expected, gate)
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= error + step * expected.abs() + 1e-6).all()


@pytest.mark.parametrize(("kind", "size"), [(E4M3, 16), (E8M0, 32)])
@pytest.mark.parametrize(("tokens", "dtype"), [(0, BF16), (17, BF16), (17, F32), (65, BF16)])
def test_the_forms_take_a_norm_before(kind, size, tokens, dtype):
    (words, scale, unit), inputs = layer(3, kind, size, 288 // size, 24), 288
    x, residual = (rows_of(seed, tokens, inputs, dtype) for seed in (1, 2))
    norm_weight = rows_of(4, 1, inputs, dtype)[0]
    weight = meant(words, scale, unit, inputs, torch.float64)
    stored = words, scale, None, None, "silu", 4, unit, "e2m1"
    for before in (None, residual):
        out, total = forms.norm_linear_group_words(x, before, norm_weight, 1e-5, *stored)
        assert torch.equal(total, x if before is None else x + before)
        normed, _ = residual_norm_reference(x, before, norm_weight, 1e-5)
        step = 16 * max(torch.finfo(dtype).eps, 1e-6)  # of a norm that is rounded elsewhere
        wide = normed.double() @ weight.T
        error = step * (1 + weight.abs().sum(1).amax())
        expected = gated_activation_reference(wide, "silu")
        assert out.shape == expected.shape
        torch.testing.assert_close(out.double(), expected, rtol=step, atol=float(error))


@pytest.mark.parametrize(("kind", "size"), [(E4M3, 16), (E4M3, 32), (E8M0, 32)])
def test_a_row_does_not_depend_on_the_other_rows_of_the_step(kind, size):
    given, x = layer(5, kind, size, 768 // size, 40), rows_of(6, 64, 768, BF16)
    together = product(x, given)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 20), slice(63, 64)):
        assert torch.equal(product(x[rows], given), together[rows])


@pytest.mark.parametrize(("kind", "size"), [(E4M3, 16), (E8M0, 32)])
def test_nan_and_infinity_stay_in_their_rows_and_scales_in_their_outputs(kind, size):
    (words, scale, unit), x = layer(7, kind, size, 160 // size, 24), rows_of(8, 5, 160, BF16)
    clean, poisoned = product(x, (words, scale, unit)), x.clone()
    poisoned[1], poisoned[4, 7] = float("nan"), float("inf")
    out = product(poisoned, (words, scale, unit))
    assert not out[[1, 4]].isfinite().any()
    assert torch.equal(out[[0, 2, 3]], clean[[0, 2, 3]])
    broken = scale.view(torch.uint8).clone()
    broken[3, 5] = 0xFF
    out = product(x, (words, broken.view(kind), unit))
    assert out[:, 5].isnan().all()
    others = torch.arange(24) != 5
    assert torch.equal(out[:, others], clean[:, others])


def test_scales_of_zero_and_a_unit_of_zero_leave_zeros_and_the_bias():
    words, scale, unit = layer(9, E4M3, 16, 10, 24)
    x, bias = rows_of(10, 3, 160, BF16), rows_of(11, 1, 24, BF16)[0]
    empty = torch.zeros_like(scale.view(torch.uint8)).view(E4M3)
    assert not product(x, (words, empty, unit)).any()
    assert torch.equal(product(x, (words, scale, torch.zeros_like(unit)), bias), bias.expand(3, -1))
