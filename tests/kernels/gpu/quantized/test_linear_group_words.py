"""Products on words of codes in the interpreter: the weight that is meant to the bit, and sums against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.quantized import linear_group_words as forms
from quire.kernels.gpu.quantized.group_tiles import (
    BLOCK_O,
    MOST_TOKENS,
    PIECE_OUTPUTS,
    WORKSPACE,
    group_tiles,
    piece_outputs,
    slices_of,
)
from quire.kernels.linear.activation import gated_activation_reference
from quire.kernels.linear.linear_group_words import dequantize_words_reference, pack_words, tile_inputs
from quire.kernels.linear.norm import residual_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def layer(seed, bits, units, groups, outputs, offset, scale_dtype):
    """Words, scale and offset of a layer of `units` 32 inputs for each of its groups."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 32 * units * groups
    codes = torch.randint(1 << bits, (outputs, inputs), generator=generator, dtype=torch.uint8)
    scale = (torch.rand((groups, outputs), generator=generator) / (1 << bits)).to(scale_dtype)
    offsets = {
        "none": None,
        "zeros": torch.randint(1 << bits, (groups, outputs), generator=generator, dtype=torch.uint8),
        "minima": torch.randn((groups, outputs), generator=generator).to(scale_dtype),
    }
    return pack_words(codes, bits), scale, offsets[offset]


def meant(words, scale, offset, bits, inputs, dtype):
    """The weight, float64; each rounded once to the model's dtype."""
    return dequantize_words_reference(words, scale, offset, bits, inputs, dtype).double()


def check(out, x, weight, bias, gate):
    """Within what float32 sums and the rounding of the result may move them."""
    step, least = torch.finfo(out.dtype).eps, torch.finfo(F32).eps * x.shape[1]
    offset = 0 if bias is None else bias.double()
    expected = x.double() @ weight.T + offset
    error = least * (x.double().abs() @ weight.abs().T + abs(offset))
    if gate is not None:
        error = error.sum(-1, keepdim=True) * (1 + expected.abs().amax(-1, keepdim=True))
        expected = gated_activation_reference(expected, gate)
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= error + step * expected.abs() + 1e-6).all()


def rows_of(seed, tokens, inputs, dtype):
    return torch.randn((tokens, inputs), generator=torch.Generator().manual_seed(seed)).to(dtype)


OFFSETS = st.sampled_from(["none", "zeros", "minima"])
SIZES = st.sampled_from([(1, 1), (1, 3), (2, 3), (4, 1), (4, 3), (3, 2), (8, 1), (9, 1), (16, 1)])
"""Inputs of a group over 32, and groups: 32, 64, 96, 128, 256, and all inputs, which may be no whole tile."""


@settings(max_examples=20)
@given(
    bits=st.sampled_from([4, 8]),
    size=SIZES,
    outputs=st.integers(1, 80),
    offset=OFFSETS,
    scale_dtype=st.sampled_from([BF16, F16]),
    dtype=st.sampled_from([BF16, F16]),
    seed=st.integers(0, 99),
)
def test_each_weight_is_the_one_that_is_meant_rounded_once(bits, size, outputs, offset, scale_dtype, dtype, seed):
    """Rows with a single 1 read the columns of the weight, in products of few tokens and of many."""
    given = layer(seed, bits, *size, outputs, offset, scale_dtype)
    inputs = 32 * size[0] * size[1]
    weight = meant(*given, bits, inputs, dtype).T
    picked = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))[:MOST_TOKENS]
    x = torch.eye(inputs, dtype=dtype)
    assert torch.equal(forms.linear_group_words(x[picked], *given, None, bits).double(), weight[picked])
    assert torch.equal(forms._many_tokens(x, *given, None, bits, None, "").double(), weight)


@settings(max_examples=20)
@given(
    tokens=st.integers(1, 40),
    bits=st.sampled_from([4, 8]),
    size=SIZES,
    half=st.integers(1, 70),
    offset=OFFSETS,
    dtype=st.sampled_from([BF16, F16, F32]),
    gate=st.sampled_from([None, "silu", "gelu_tanh"]),
    has_bias=st.booleans(),
    parts=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_products_agree_with_float64_whatever_the_shape(
    tokens, bits, size, half, offset, dtype, gate, has_bias, parts, seed
):
    given = layer(seed, bits, *size, 2 * half, offset, F16)
    inputs = 32 * size[0] * size[1]
    x, bias = rows_of(seed, tokens, inputs, dtype), rows_of(seed + 1, 1, 2 * half, dtype)[0] if has_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "group_tiles", lambda *sizes: {**group_tiles(*sizes), "parts": parts})
        out = forms._product(x, *given, bias, gate, bits, None, "")
    check(out, x, meant(*given, bits, inputs, dtype), bias, gate)


@pytest.mark.parametrize("tokens", [0, 1, 16, 17, 64, 65])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_the_forms_take_any_number_of_tokens_and_a_norm_before(tokens, dtype):
    given, inputs = layer(3, 4, 4, 3, 24, "zeros", F16), 384
    x, residual = (rows_of(seed, tokens, inputs, dtype) for seed in (1, 2))
    norm_weight, bias = rows_of(4, 1, inputs, dtype)[0], rows_of(5, 1, 24, dtype)[0]
    weight = meant(*given, 4, inputs, dtype)
    check(forms.linear_group_words(x, *given, bias, 4), x, weight, bias, None)
    for before in (None, residual):
        out, total = forms.norm_linear_group_words(x, before, norm_weight, 1e-5, *given, bias, "silu", 4)
        assert torch.equal(total, x if before is None else x + before)
        normed, _ = residual_norm_reference(x, before, norm_weight, 1e-5)
        step = 16 * max(torch.finfo(dtype).eps, 1e-6)  # of a norm that is rounded elsewhere
        expected = gated_activation_reference(normed.double() @ weight.T + bias.double(), "silu")
        torch.testing.assert_close(out.double(), expected, rtol=step, atol=step * 16)


def test_a_row_does_not_depend_on_the_other_rows_of_the_step():
    given, x = layer(5, 4, 4, 6, 40, "zeros", F16), rows_of(6, 40, 768, BF16)
    together = forms.linear_group_words(x, *given, None, 4)
    for rows in (slice(0, 1), slice(5, 6), slice(3, 20)):
        assert torch.equal(forms.linear_group_words(x[rows], *given, None, 4), together[rows])


def test_nan_and_infinity_stay_in_their_rows():
    given, x = layer(7, 8, 1, 5, 24, "minima", F16), rows_of(8, 5, 160, BF16)
    clean, poisoned = forms.linear_group_words(x, *given, None, 8), x.clone()
    poisoned[1], poisoned[4, 7] = float("nan"), float("inf")
    out = forms.linear_group_words(poisoned, *given, None, 8)
    assert not out[[1, 4]].isfinite().any()
    assert torch.equal(out[[0, 2, 3]], clean[[0, 2, 3]])


def test_many_tokens_are_multiplied_piece_by_piece_in_one_place(monkeypatch):
    given, x = layer(9, 4, 4, 2, 100, "zeros", F16), rows_of(10, 70, 256, BF16)
    whole = forms._many_tokens(x, *given, None, 4, None, "")
    made, multiply = [], torch.mm
    monkeypatch.setattr("quire.kernels.gpu.quantized.group_tiles.WORKSPACE", 40 * 256 * 2)
    monkeypatch.setattr(
        torch, "mm", lambda a, b, out: made.append((b.data_ptr(), b.shape[1])) or multiply(a, b, out=out)
    )
    assert torch.equal(forms._many_tokens(x, *given, None, 4, None, ""), whole)
    assert [size for _, size in made] == [32, 32, 32, 4]
    assert len({place for place, _ in made}) == 1


@given(st.integers(1, 64), st.integers(1, 900), st.integers(1, 200000), st.sampled_from([4, 8]))
@settings(max_examples=200)
def test_tiles_cover_the_layer_whatever_the_tokens(tokens, units, outputs, bits):
    tiles, inputs = group_tiles(tokens, 32 * units, outputs, bits), 32 * units
    assert tiles["parts"] == group_tiles(1, inputs, outputs, bits)["parts"]
    assert tiles["parts"] <= -(-inputs // tile_inputs(bits))
    # words and x of all stages, in the smallest chip's shared memory
    stage = BLOCK_O * 128 + 2 * tile_inputs(bits) * tiles["tokens"]
    assert tiles["num_stages"] * stage <= 99 * 1024
    for itemsize in (2, 4):
        piece = piece_outputs(inputs, outputs, itemsize)
        assert 1 <= piece <= outputs
        assert piece * inputs * itemsize <= max(WORKSPACE, PIECE_OUTPUTS * inputs * itemsize)


@pytest.mark.parametrize(("inputs", "groups", "bits", "run", "per", "group_size"), [
    (4096, 32, 4, 4, 1, None), (4096, 32, 8, 4, 1, None), (4096, 64, 4, 2, 1, None), (4096, 128, 4, 1, 1, None),
    (4096, 1, 4, 8, 1, 4096), (4096, 1, 8, 4, 1, 4096), (288, 3, 4, 1, 1, 96), (192, 1, 4, 2, 1, 192),
    (384, 2, 8, 2, 1, 192), (256, 1, 4, 8, 1, None), (256, 1, 8, 4, 1, 256), (288, 18, 4, 1, 2, None),
])  # fmt: skip
def test_slices_share_the_numbers_of_a_group_only_where_they_are_of_one(inputs, groups, bits, run, per, group_size):
    assert slices_of(inputs, groups, bits) == {"RUN": run, "PER": per, "group_size": group_size}
    size, tile = inputs // groups, tile_inputs(bits)
    for start in range(0, inputs, 32 * run):
        ends = min(start + 32 * run, inputs) - 1
        assert ends // size - start // size == per - 1
        if group_size is None:  # what kernels count instead of dividing
            assert start // size == start // tile * (tile // 32 * per // run) + start % tile // 32 * per // run
