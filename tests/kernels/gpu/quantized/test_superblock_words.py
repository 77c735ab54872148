"""Products on words as GGUF's types become them, interpreted: superblocks, groups of 16 and the table iq4_nl."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.quantized import linear_group_words as forms
from quire.kernels.gpu.quantized.group_tiles import group_tiles
from quire.kernels.linear.activation import gated_activation_reference
from quire.kernels.linear.code_tables import TABLES
from quire.kernels.linear.linear_group_words import dequantize_words_reference, pack_words, unpack_words
from quire.kernels.linear.linear_groups import scaled
from quire.kernels.linear.norm import residual_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KINDS = {
    "Q4_K": (4, 32, True, True, ""),
    "Q5_K": (8, 32, True, True, ""),
    "Q6_K": (8, 16, False, True, ""),
    "IQ4_NL": (4, 32, False, False, "iq4_nl"),
    "IQ4_XS": (4, 32, False, True, "iq4_nl"),
    "halves": (8, 16, True, False, ""),
}
"""Bits of a code in memory, inputs of a group, whether there are minima, and superblocks, and the table."""
MOST = {"Q5_K": 31, "Q6_K": 159}
"""The largest code, where not all of its bits are used; the least of Q6_K is 96, its middle 128."""


def layer(seed, kind, inputs, outputs):
    """Words, scale, offset and unit."""
    bits, size, has_minima, has_units, _ = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    shape, count = (inputs // size, outputs), 2 if has_minima else 1
    codes = torch.randint(
        96 if kind == "Q6_K" else 0, MOST.get(kind, (1 << bits) - 1) + 1, (outputs, inputs), generator=generator
    )
    if has_units:
        least = 0 if has_minima else -128
        numbers = [torch.randint(least, 128, shape, generator=generator).to(torch.int8) for _ in range(count)]
        unit = (torch.rand((count, inputs // 256, outputs), generator=generator) / 2**12).half()
    else:
        numbers, unit = [torch.randn(shape, generator=generator).half() for _ in range(count)], None
    return pack_words(codes.to(torch.uint8), bits), numbers[0], numbers[1] if has_minima else None, unit


def meant(given, kind, inputs, dtype):
    words, scale, offset, unit = given
    return dequantize_words_reference(words, scale, offset, KINDS[kind][0], inputs, dtype, unit, KINDS[kind][4])


def product(x, given, kind, bias=None):
    words, scale, offset, unit = given
    return forms.linear_group_words(x, words, scale, offset, bias, KINDS[kind][0], unit, KINDS[kind][4])


def made(given, kind, inputs, dtype):
    """The weights [inputs, outputs] that a product of many tokens makes."""
    words, scale, offset, unit = given
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "mm", lambda x, weight, out: out.copy_(weight))
        x = torch.zeros((inputs, inputs), dtype=dtype)
        return forms._many_tokens(x, words, scale, offset, None, KINDS[kind][0], unit, KINDS[kind][4])


def rows_of(seed, tokens, inputs, dtype):
    return torch.randn((tokens, inputs), generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("has_units", [True, False])
def test_every_place_in_the_table_by_every_scale_is_the_number_that_is_meant(dtype, has_units):
    """An output for each int8 scale, an input for each code; in float32 without any rounding."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(256, 16)
    scale = torch.arange(-128, 128, dtype=torch.int8).repeat(8, 1)
    unit = torch.full((1, 1, 256), 0.0123).half() if has_units else None
    exact = scale[0].double() * (1 if unit is None else unit[0, 0, 0].double())
    exact = torch.tensor(TABLES["iq4_nl"]).double()[codes[0].int()][:, None] * exact
    given = pack_words(codes, 4), scale if has_units else scale.half(), None, unit
    assert torch.equal(made(given, "IQ4_XS", 256, dtype), exact.to(dtype))
    if dtype != F32:
        picked = torch.eye(256, dtype=dtype)[96:160]
        assert torch.equal(product(picked, given, "IQ4_XS"), exact.to(dtype)[96:160])


@settings(max_examples=12)
@given(
    kind=st.sampled_from(list(KINDS)),
    superblocks=st.integers(1, 3),
    outputs=st.integers(1, 80),
    dtype=st.sampled_from([BF16, F16]),
    seed=st.integers(0, 99),
)
def test_each_weight_is_the_one_that_is_meant_rounded_once(kind, superblocks, outputs, dtype, seed):
    """Rows with a single 1 read the columns of the weight; pieces have it as it is."""
    inputs = 256 * superblocks
    given = layer(seed, kind, inputs, outputs)
    weight = meant(given, kind, inputs, dtype).T
    picked = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))[:64]
    assert torch.equal(product(torch.eye(inputs, dtype=dtype)[picked], given, kind), weight[picked])
    assert torch.equal(made(given, kind, inputs, dtype), weight)


@pytest.mark.parametrize("inputs", [96, 128, 384])
@pytest.mark.parametrize("kind", [kind for kind, (*_, has_units, _) in KINDS.items() if has_units])
def test_a_part_of_superblocks_has_scales_of_float32_and_no_units(kind, inputs):
    """As a rank keeps it that shares a superblock with another."""
    bits, size, *_ = KINDS[kind]
    words, scale, offset, unit = whole = layer(3, kind, 512, 40)
    codes = unpack_words(words, bits, 512)[:, :inputs].to(torch.uint8)
    numbers = [
        None if one is None else scaled(one.T, unit[n].T).T[: inputs // size].contiguous()
        for n, one in enumerate((scale, offset))
    ]
    given, weight = (pack_words(codes, bits), *numbers, None), meant(whole, kind, 512, BF16)[:, :inputs].T
    assert torch.equal(product(torch.eye(inputs, dtype=BF16)[:64], given, kind), weight[:64])
    assert torch.equal(made(given, kind, inputs, BF16), weight)


@settings(max_examples=20)
@given(
    tokens=st.sampled_from([1, 3, 16, 17, 40, 66]),
    kind=st.sampled_from(list(KINDS)),
    superblocks=st.integers(1, 4),
    half=st.integers(1, 70),
    dtype=st.sampled_from([BF16, F16, F32]),
    gate=st.sampled_from([None, "silu", "gelu_tanh"]),
    has_bias=st.booleans(),
    parts=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_products_agree_with_float64_whatever_the_shape(
    tokens, kind, superblocks, half, dtype, gate, has_bias, parts, seed
):
    inputs = 256 * superblocks
    words, scale, offset, unit = given = layer(seed, kind, inputs, 2 * half)
    x, bias = rows_of(seed, tokens, inputs, dtype), rows_of(seed + 1, 1, 2 * half, dtype)[0] if has_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "group_tiles", lambda *sizes: {**group_tiles(*sizes), "parts": parts})
        out = forms._product(x, words, scale, offset, bias, gate, KINDS[kind][0], unit, KINDS[kind][4])
    weight, added = meant(given, kind, inputs, dtype).double(), 0 if bias is None else bias.double()
    step, least = torch.finfo(dtype).eps, torch.finfo(F32).eps * inputs
    expected = x.double() @ weight.T + added
    error = least * (x.double().abs() @ weight.abs().T + abs(added))
    if gate is not None:
        error = error.sum(-1, keepdim=True) * (1 + expected.abs().amax(-1, keepdim=True))
        expected = gated_activation_reference(expected, gate)
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= error + step * expected.abs() + 1e-6).all()


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize(("tokens", "dtype"), [(17, BF16), (65, BF16), (3, F32)])
def test_the_forms_take_a_norm_before(kind, tokens, dtype):
    given, inputs = layer(3, kind, 512, 24), 512
    words, scale, offset, unit = given
    x, residual = (rows_of(seed, tokens, inputs, dtype) for seed in (1, 2))
    norm_weight = rows_of(4, 1, inputs, dtype)[0]
    weight = meant(given, kind, inputs, dtype).double()
    stored = words, scale, offset, None, "silu", KINDS[kind][0], unit
    out, total = forms.norm_linear_group_words(x, residual, norm_weight, 1e-5, *stored)
    assert torch.equal(total, x + residual)
    normed, _ = residual_norm_reference(x, residual, norm_weight, 1e-5)
    step = 16 * max(torch.finfo(dtype).eps, 1e-6)  # of a norm that is rounded elsewhere
    expected = gated_activation_reference(normed.double() @ weight.T, "silu")
    error = step * (1 + weight.abs().sum(1).amax()) * (1 + expected.abs().amax())
    torch.testing.assert_close(out.double(), expected, rtol=step, atol=float(error))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "IQ4_XS"])
def test_rows_are_apart_and_a_unit_is_of_one_output(kind):
    given, x = layer(5, kind, 1024, 40), rows_of(6, 40, 1024, BF16)
    together = product(x, given, kind)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 20)):
        assert torch.equal(product(x[rows], given, kind), together[rows])
    words, scale, offset, unit = given
    changed = unit.clone()
    changed[0, 2, 7] *= 2
    out = product(x, (words, scale, offset, changed), kind)
    others = torch.arange(40) != 7
    assert torch.equal(out[:, others], together[:, others])
    assert (out[:, 7] != together[:, 7]).any()
