"""Products of 8-bit floats in the interpreter against their references, and what runs where."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.chip import HOST, Chip
from quire.kernels.gpu.linear.activation import gated_activation
from quire.kernels.gpu.quantized import linear_f8 as forms
from quire.kernels.gpu.quantized import product_f8 as products
from quire.kernels.gpu.quantized.product_f8 import LEAST_STEPS, product_f8, tiles_for
from quire.kernels.gpu.quantized.quantize_f8 import WIDEST, Norm, quantize_f8
from quire.kernels.linear.activation import GATES
from quire.kernels.linear.linear_f8 import (
    F8,
    check_packed,
    gated_linear_f8_reference,
    linear_f8_reference,
    norm_linear_f8_reference,
    quantize,
)
from quire.kernels.linear.norm import residual_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BF16, F16, F32]
AMPERE = Chip("an older chip", 80, 1)
WAYS = ["token", "static", "none"]


@pytest.fixture
def older_chip():
    token = HOST.set(AMPERE)
    yield
    HOST.reset(token)


def codes_of(generator, *shape):
    """Codes of every magnitude, without NaN."""
    return (torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-9, 8, shape, generator=generator)).to(F8)


def draw(seed, num_tokens, size_in, size_out, dtype):
    """x, residual, norm weight, codes, scale, bias"""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_tokens, size_in), (num_tokens, size_in), (size_in,), (size_out,))
    x, residual, norm_weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    codes = codes_of(generator, size_out, size_in)
    return x, residual, norm_weight, codes, torch.rand(size_out, generator=generator) / 64, bias


def close(out, x, codes, scale, bias, expected):
    """Within what rounding sums of products to float32, and the result to its type, may move them."""
    assert out.shape == expected.shape
    assert out.dtype == expected.dtype
    sums = (x.float().abs() @ codes.float().abs().T) * scale
    room = 1e-5 * sums + torch.finfo(out.dtype).eps * (expected.float().abs() + (0 if bias is None else bias.abs()))
    assert ((out.float() - expected.float()).abs() <= 2 * room + 1e-30).all()


@settings(max_examples=25)
@given(
    rows=st.integers(0, 5),
    size=st.sampled_from([1, 3, 16, 33, 100, 5000, WIDEST + 100]),
    dtype=st.sampled_from(DTYPES),
    norm=st.sampled_from(["", "alone", "residual"]),
    is_static=st.booleans(),
    magnitude=st.sampled_from([1e-38, 1e-6, 1.0, 900.0]),
    seed=st.integers(0, 99),
)
def test_rows_are_rounded_as_the_reference_rounds_them(rows, size, dtype, norm, is_static, magnitude, seed):
    x, residual, norm_weight, *_ = draw(seed, rows, size, 1, dtype)
    x *= magnitude
    residual = residual if norm == "residual" else None
    static = torch.tensor([0.01]) if is_static else None
    codes, scales, total = quantize_f8(x, static, Norm(residual, norm_weight, 1e-5) if norm else None)
    normed, expected_total = residual_norm_reference(x, residual, norm_weight, 1e-5) if norm else (x, x)
    assert torch.equal(total, expected_total)
    expected, expected_scales = quantize(normed, static)
    # sums of squares are added in another order: a step of the norm moves its largest element
    tolerance = 2 * torch.finfo(dtype).eps if norm else 0
    torch.testing.assert_close(scales, expected_scales, rtol=tolerance, atol=0)
    if norm:
        wide, step = normed.float(), 2.0**-3 + tolerance
        assert ((codes.float() * scales[:, None] - wide.clamp(-448 * scales[:, None], 448 * scales[:, None])).abs()
                <= step * wide.abs() + 2.0**-9 * scales[:, None]).all()  # fmt: skip
    else:
        assert torch.equal(codes.float(), expected.float())


def test_every_code_is_kept_and_what_lies_beyond_saturates():
    every = torch.arange(256, dtype=torch.uint8).view(F8).float()
    every = every[every.isfinite()][None]
    one = torch.ones(1)
    assert torch.equal(quantize_f8(every, one)[0].float(), every)
    codes, scales, _ = quantize_f8(torch.tensor([[449.0, -1e30, 464.0, 0.0]]), one)
    assert codes.float().tolist() == [[448.0, -448.0, 448.0, 0.0]]
    assert scales.tolist() == [1.0]


@pytest.mark.parametrize("size", [5000, WIDEST + 100])
@pytest.mark.parametrize("static", [None, torch.tensor([0.5])])
def test_a_row_with_nan_or_infinity_has_a_scale_of_nan_and_zeros_stay_zeros(static, size):
    x = torch.zeros((4, size), dtype=BF16)
    x[1, -1], x[2, 0], x[3, 7] = float("nan"), float("-inf"), 2.0
    codes, scales, _ = quantize_f8(x, static)
    assert scales.isnan().tolist() == [False, True, True, False]
    assert torch.equal(codes[0].float(), torch.zeros(size))
    assert torch.equal(scales[[0, 3]], quantize(x, static)[1][[0, 3]])


@settings(max_examples=25)
@given(
    num_tokens=st.sampled_from([1, 2, 15, 17, 33, 64, 65, 130]),
    size_in=st.sampled_from([1, 16, 70, 128, 200]),
    size_out=st.sampled_from([1, 16, 70, 128, 130]),
    dtype=st.sampled_from(DTYPES),
    activations=st.sampled_from(WAYS),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_equal_the_reference_whatever_the_shape(
    num_tokens, size_in, size_out, dtype, activations, has_bias, seed
):
    x, _, _, codes, scale, bias = draw(seed, num_tokens, size_in, size_out, dtype)
    bias = bias if has_bias else None
    static = torch.tensor([0.02]) if activations == "static" else None
    given_arguments = (x, codes, scale, bias, activations, static)
    wanted = linear_f8_reference(*given_arguments)
    if activations == "none" or num_tokens <= forms.MOST_TOKENS or dtype != BF16:
        close(forms.linear_f8(*given_arguments), x, codes, scale, bias, wanted)
    rounded, row_scale = (x, None) if activations == "none" else quantize_f8(x, static)[:2]
    close(product_f8(rounded, row_scale, codes, scale, bias, dtype), x, codes, scale, bias, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_older_chip_multiplies_activations_as_they_are(dtype, older_chip):
    every = torch.arange(256, dtype=torch.uint8).view(F8).repeat(4, 1).T.contiguous()
    every = torch.cat((every, every.roll(3, 0)), dim=1)  # subnormals and both NaN too
    scale, identity = torch.rand(256), torch.eye(8, dtype=dtype)
    out = forms.linear_f8(identity, every, scale, None, "none", None)
    nan = every.float().isnan().any(1)
    assert out[:, nan].isnan().all()
    assert torch.equal(out[:, ~nan], (every.float()[~nan].T * scale[~nan]).to(dtype))
    x, residual, norm_weight, codes, scale, bias = draw(3, 5, 70, 24, dtype)
    for activations, static in (("token", None), ("static", torch.ones(1))):
        got = forms.linear_f8(x, codes, scale, bias, activations, static)
        assert torch.equal(got, forms.linear_f8(x, codes, scale, bias, "none", None))
        close(got, x, codes, scale, bias, linear_f8_reference(x, codes, scale, bias, "none", None))
    got, total = forms.norm_linear_f8(x, residual, norm_weight, 1e-5, codes, scale, None, None, "token", None)
    wanted = norm_linear_f8_reference(x, residual, norm_weight, 1e-5, codes, scale, None, None, "none", None)
    assert torch.equal(total, wanted[1])
    torch.testing.assert_close(got, wanted[0], rtol=0.02, atol=0.02)
    wide = torch.cat((x, residual), 1)
    got = forms.gated_linear_f8(wide, "silu", codes, scale, bias, "token", None)
    wanted = gated_linear_f8_reference(wide, "silu", codes, scale, bias, "none", None)
    torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("activations", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_with_residual_norm_and_gate_the_layer_is_that_of_its_parts(dtype, activations):
    x, residual, norm_weight, codes, scale, bias = draw(5, 3, 96, 40, dtype)
    static = torch.tensor([0.02]) if activations == "static" else None
    for before in (None, residual):
        for gate in (None, "silu"):
            given_arguments = (x, before, norm_weight, 1e-5, codes, scale, bias, gate, activations, static)
            out, total = forms.norm_linear_f8(*given_arguments)
            wanted, wanted_total = norm_linear_f8_reference(*given_arguments)
            assert torch.equal(total, wanted_total)
            # a sum of squares that differs in its last place may move a number to the next code
            torch.testing.assert_close(out, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


@pytest.mark.parametrize("activations", WAYS)
def test_a_row_does_not_depend_on_the_others_and_keeps_its_nan(activations):
    x, residual, norm_weight, codes, scale, bias = draw(2, 40, 1100, 70, BF16)
    static = torch.tensor([0.02]) if activations == "static" else None
    rest = (norm_weight, 1e-5, codes, scale, bias, "silu", activations, static)
    together, _ = forms.norm_linear_f8(x, residual, *rest)
    for row in (0, 39):
        alone, _ = forms.norm_linear_f8(x[row : row + 1], residual[row : row + 1], *rest)
        assert torch.equal(alone, together[row : row + 1])
    x[1], x[4, 7] = float("nan"), float("inf")
    spoilt, _ = forms.norm_linear_f8(x, residual, *rest)
    sound = [row for row in range(40) if row not in (1, 4)]
    assert spoilt[[1, 4]].isnan().all()
    assert torch.equal(spoilt[sound], together[sound])


@settings(max_examples=20)
@given(
    rows=st.integers(0, 5),
    size=st.sampled_from([1, 3, 16, 100, 5000, WIDEST + 100]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(list(GATES)),
    is_static=st.booleans(),
    magnitude=st.sampled_from([1e-6, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_a_gate_in_the_launch_that_rounds_is_the_gate_before_it_to_the_bit(
    rows, size, dtype, kind, is_static, magnitude, seed
):
    x = draw(seed, rows, 2 * size, 1, dtype)[0] * magnitude
    static = torch.tensor([0.01]) if is_static else None
    codes, scales, _ = quantize_f8(x, static, gate=kind)
    expected, expected_scales = quantize(gated_activation(x, kind), static)
    assert torch.equal(codes.float(), expected.float())
    torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("activations", WAYS)
@pytest.mark.parametrize("kind", list(GATES))
def test_a_gated_layer_is_the_layer_of_what_the_gate_makes(kind, activations):
    x, _, _, codes, scale, bias = draw(6, 40, 2 * 1100, 70, BF16)
    codes = codes[:, :1100].contiguous()
    static = torch.tensor([0.02]) if activations == "static" else None
    rest = (codes, scale, bias, activations, static)
    together = forms.gated_linear_f8(x, kind, *rest)
    if activations != "none":
        assert torch.equal(together, forms.linear_f8(gated_activation(x, kind), *rest))
    torch.testing.assert_close(together, gated_linear_f8_reference(x, kind, *rest), rtol=0.05, atol=0.05)
    assert torch.equal(forms.gated_linear_f8(x[7:8], kind, *rest), together[7:8])
    x[1, 1100], x[4, 7] = float("nan"), float("inf")
    spoilt = forms.gated_linear_f8(x, kind, *rest)
    assert spoilt[1].isnan().all()
    assert not spoilt[4].isfinite().any()
    sound = [row for row in range(40) if row not in (1, 4)]
    assert torch.equal(spoilt[sound], together[sound])


def test_a_nan_code_spoils_its_output_alone():
    x, _, _, codes, scale, _ = draw(7, 3, 200, 20, BF16)
    codes[5, 150] = float("nan")
    for activations in ("token", "none"):
        out = forms.linear_f8(x, codes, scale, None, activations, None)
        assert out[:, 5].isnan().all()
        assert out.isfinite().sum() == 3 * 19


def test_torch_multiplies_many_tokens_where_it_has_the_product(monkeypatch):
    calls = []
    monkeypatch.setattr(forms, "torch_product", lambda x, *_: calls.append(("torch", len(x))) or x)
    monkeypatch.setattr(forms, "product_f8", lambda x, scales, *_: calls.append(("own", len(x))) or x)
    for num_tokens, dtype, size_in, size_out, activations in (
        (64, BF16, 32, 48, "token"),
        (65, BF16, 32, 48, "token"),
        (65, BF16, 32, 48, "static"),
        (65, BF16, 32, 48, "none"),
        (65, BF16, 40, 48, "token"),
        (65, BF16, 32, 56, "token"),
        (65, F16, 32, 48, "token"),
        (65, F32, 32, 48, "token"),
    ):
        x, _, _, codes, scale, _ = draw(0, num_tokens, size_in, size_out, dtype)
        static = torch.ones(1) if activations == "static" else None
        forms.linear_f8(x, codes, scale, None, activations, static)
    assert [name for name, _ in calls] == ["own", "torch", "torch", "own", "own", "own", "own", "own"]


def test_torch_is_asked_for_rows_of_scales(monkeypatch):
    def scaled_mm(codes, weight, left, right, *, bias, out_dtype, use_fast_accum):
        assert weight.stride(0) == 1  # columns lie one after another
        assert not use_fast_accum  # sums of 8-bit floats are those of float32
        assert (left.shape, right.shape) == ((codes.shape[0], 1), (1, weight.shape[1]))
        return ((codes.float() @ weight.float()) * left * right + bias.float()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    x, _, _, codes, scale, bias = draw(9, 70, 64, 48, BF16)
    close(forms.linear_f8(x, codes, scale, bias, "token", None), x, codes, scale, bias,
          linear_f8_reference(x, codes, scale, bias, "token", None))  # fmt: skip


def test_what_is_packed_on_a_gpu_is_what_is_in_the_file():
    x, _, _, codes, *_ = draw(0, 2, 70, 24, BF16)
    packed = forms.pack(codes)
    assert packed is codes
    check_packed(x, packed, 24, None)
    with pytest.raises(ValueError, match=r"weight: expected shape \[23, 70\], got \[24, 70\]"):
        check_packed(x, packed, 23, None)
    with pytest.raises(ValueError, match=r"weight: expected shape \[24, 69\], got \[24, 70\]"):
        check_packed(x[:, :69], packed, 24, None)


@given(st.integers(1, 200), st.integers(1, 60000), st.integers(1, 200000), st.sampled_from([F8, BF16, F32]))
@settings(max_examples=200)
def test_tiles_can_be_launched_cover_the_layer_and_split_it_alike_for_few_tokens(num_tokens, size_in, size_out, dtype):
    tiles = tiles_for(num_tokens, size_in, size_out, dtype)
    for name in ("block_o", "block_i", "tokens", "parts", "num_warps"):
        assert tiles[name].bit_count() == 1
    steps = -(-size_in // tiles["block_i"])
    assert tiles["parts"] == 1 or steps >= LEAST_STEPS * tiles["parts"]
    if dtype == F8:
        assert tiles["block_i"] <= products.PROMOTED
    if num_tokens <= 64:
        alone = tiles_for(1, size_in, size_out, dtype)
        assert (alone["parts"], alone["block_i"]) == (tiles["parts"], tiles["block_i"])
    assert -(-num_tokens // tiles["tokens"]) <= 65535
