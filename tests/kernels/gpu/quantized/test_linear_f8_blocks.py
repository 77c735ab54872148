"""Products of 8-bit floats in blocks of 128 x 128 in the interpreter against their references, and what runs where."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.chip import HOST, Chip
from quire.kernels.gpu.linear.activation import gated_activation
from quire.kernels.gpu.quantized import linear_f8_blocks as forms
from quire.kernels.gpu.quantized.product_f8 import tiles_for
from quire.kernels.gpu.quantized.product_f8_blocks import product_f8_blocks
from quire.kernels.gpu.quantized.quantize_f8 import Norm
from quire.kernels.gpu.quantized.quantize_f8_blocks import ROWS, quantize_f8_blocks
from quire.kernels.linear.activation import GATES
from quire.kernels.linear.linear_f8 import F8, quantize
from quire.kernels.linear.linear_f8_blocks import (
    SIDE,
    gated_linear_f8_blocks_reference,
    linear_f8_blocks,
    linear_f8_blocks_reference,
    norm_linear_f8_blocks,
    norm_linear_f8_blocks_reference,
    pack,
)
from quire.kernels.linear.norm import residual_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BF16, F16, F32]
WAYS = ["token", "none"]
EPS = 1e-5


@pytest.fixture
def older_chip():
    token = HOST.set(Chip("an older chip", 80, 1))
    yield
    HOST.reset(token)


def draw(seed, num_tokens, size_in, size_out, dtype):
    """x, residual, norm weight, codes of every magnitude, scale, bias"""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_tokens, size_in), (num_tokens, size_in), (size_in,), (size_out,))
    x, residual, norm_weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    powers = 2.0 ** torch.randint(-9, 8, (size_out, size_in), generator=generator)
    codes = (torch.randn((size_out, size_in), generator=generator) * powers).to(F8)
    scale = torch.rand((-(-size_out // SIDE), -(-size_in // SIDE)), generator=generator) / 64
    return x, residual, norm_weight, codes, scale, bias


def close(out, x, codes, scale, bias, expected):
    """Within what rounding sums of products to float32, and the result to its type, may move them."""
    assert out.shape == expected.shape
    assert out.dtype == expected.dtype
    sums = linear_f8_blocks_reference(x.float().abs(), codes.float().abs().to(F8), scale, None, "none")
    room = 1e-5 * sums + torch.finfo(out.dtype).eps * (expected.float().abs() + (0 if bias is None else bias.abs()))
    assert ((out.float() - expected.float()).abs() <= 2 * room + 1e-30).all()


def by_blocks(x):
    """Codes and scales of each 128 elements of rows, as the reference rounds them."""
    rounded = [quantize(x[:, start : start + SIDE], None) for start in range(0, x.shape[1], SIDE)]
    return torch.cat([codes.float() for codes, _ in rounded], 1), torch.stack([scales for _, scales in rounded])


@settings(max_examples=25)
@given(
    rows=st.integers(1, 6),
    size=st.sampled_from([1, 3, 128, 130, 384, 700, 5000]),
    dtype=st.sampled_from(DTYPES),
    norm=st.sampled_from(["", "alone", "residual"]),
    magnitude=st.sampled_from([1e-38, 1e-6, 1.0, 900.0]),
    seed=st.integers(0, 99),
)
def test_each_128_inputs_are_rounded_as_the_reference_rounds_a_row(rows, size, dtype, norm, magnitude, seed):
    x, residual, norm_weight, *_ = draw(seed, rows, size, 1, dtype)
    x *= magnitude
    residual = residual if norm == "residual" else None
    codes, scales, total = quantize_f8_blocks(x, Norm(residual, norm_weight, EPS) if norm else None)
    assert codes.shape == (-(-rows // ROWS) * ROWS, size)
    assert scales.shape == (-(-size // SIDE), codes.shape[0])
    codes, scales = codes[:rows].float(), scales[:, :rows]
    normed, expected_total = residual_norm_reference(x, residual, norm_weight, EPS) if norm else (x, x)
    assert torch.equal(total, expected_total)
    expected, expected_scales = by_blocks(normed)
    # sums of squares are added in another order: a step of the norm moves its largest element
    tolerance = 2 * torch.finfo(dtype).eps if norm else 0
    torch.testing.assert_close(scales, expected_scales, rtol=tolerance, atol=0)
    if norm:
        each = scales.T.repeat_interleave(SIDE, 1)[:, :size]
        wide = normed.float()
        room = (2.0**-3 + tolerance) * wide.abs() + 2.0**-9 * each
        assert ((codes * each - wide.clamp(-448 * each, 448 * each)).abs() <= room).all()
    else:
        assert torch.equal(codes, expected)


def test_nan_and_infinity_spoil_the_scale_of_their_block_alone():
    x = torch.zeros((4, 5000), dtype=BF16)
    x[1, 4999], x[2, 0], x[3, 130] = float("nan"), float("-inf"), 2.0
    codes, scales, _ = quantize_f8_blocks(x)
    assert scales.isnan().nonzero().tolist() == [[0, 2], [39, 1]]
    assert torch.equal(codes[0].float(), torch.zeros(5000))
    assert torch.equal(scales[:, [0, 3]], by_blocks(x[[0, 3]])[1])


@settings(max_examples=20)
@given(
    rows=st.integers(1, 6),
    size=st.sampled_from([1, 3, 128, 130, 700, 5000]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(list(GATES)),
    magnitude=st.sampled_from([1e-6, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_a_gate_in_the_launch_that_rounds_is_the_gate_before_it_to_the_bit(rows, size, dtype, kind, magnitude, seed):
    x = draw(seed, rows, 2 * size, 1, dtype)[0] * magnitude
    codes, scales, _ = quantize_f8_blocks(x, gate=kind)
    assert codes.shape == (-(-rows // ROWS) * ROWS, size)
    expected, expected_scales = by_blocks(gated_activation(x, kind))
    assert torch.equal(codes[:rows].float(), expected)
    torch.testing.assert_close(scales[:, :rows], expected_scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("activations", WAYS)
@pytest.mark.parametrize("kind", list(GATES))
def test_a_gated_layer_is_the_layer_of_what_the_gate_makes(kind, activations):
    x, _, _, codes, scale, bias = draw(6, 6, 2 * 640, 48, BF16)
    rest = (codes[:, :640].contiguous(), scale[:, :5].contiguous(), bias, activations)
    together = forms.gated_linear_f8_blocks(x, kind, *rest)
    if activations != "none":
        assert torch.equal(together, forms.linear_f8_blocks(gated_activation(x, kind), *rest))
    torch.testing.assert_close(together, gated_linear_f8_blocks_reference(x, kind, *rest), rtol=0.05, atol=0.05)
    x[1, 640] = float("nan")
    spoilt = forms.gated_linear_f8_blocks(x, kind, *rest)
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[2:], together[2:])


def test_rows_of_nothing_are_rounded_to_nothing():
    codes, scales, total = quantize_f8_blocks(torch.zeros((0, 300), dtype=BF16))
    assert (codes.shape, scales.shape, total.shape) == ((0, 300), (3, 0), (0, 300))
    x, residual, norm_weight, codes, scale, bias = draw(0, 0, 300, 48, BF16)
    out, total = forms.norm_linear_f8_blocks(x, residual, norm_weight, EPS, codes, scale, bias, "silu", "token")
    assert (out.shape, total.shape) == ((0, 24), (0, 300))
    wide = torch.zeros((0, 600), dtype=BF16)
    assert forms.gated_linear_f8_blocks(wide, "silu", codes, scale, bias, "token").shape == (0, 48)


@settings(max_examples=14)
@given(
    num_tokens=st.sampled_from([1, 2, 17, 33, 64, 65]),
    size_in=st.sampled_from([1, 16, 70, 128, 200, 272]),
    size_out=st.sampled_from([16, 48, 128, 144]),
    dtype=st.sampled_from(DTYPES),
    activations=st.sampled_from(WAYS),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_equal_the_reference_whatever_the_shape(
    num_tokens, size_in, size_out, dtype, activations, has_bias, seed
):
    x, _, _, codes, scale, bias = draw(seed, num_tokens, size_in, size_out, dtype)
    given_arguments = (x, codes, scale, bias if has_bias else None, activations)
    out = forms.linear_f8_blocks(*given_arguments)
    close(out, x, codes, scale, given_arguments[3], linear_f8_blocks_reference(*given_arguments))


def test_a_layer_that_is_split_adds_parts_of_whole_blocks():
    x, _, _, codes, scale, bias = draw(1, 3, 1100, 48, BF16)
    assert tiles_for(3, 1100, 48, F8)["parts"] > 1
    for activations in WAYS:
        wanted = linear_f8_blocks_reference(x, codes, scale, bias, activations)
        close(forms.linear_f8_blocks(x, codes, scale, bias, activations), x, codes, scale, bias, wanted)


def test_the_largest_codes_and_scales_far_apart_keep_their_blocks_apart():
    x = torch.full((2, 384), 1.0)
    x[:, 128:256] = 2.0**20
    codes = torch.full((256, 384), 448.0).to(F8)
    scale = torch.tensor([[1.0, 2.0**-40, 0.0], [2.0**30, 0.0, 2.0**-30]])
    for activations in WAYS:
        out = forms.linear_f8_blocks(x, codes, scale, None, activations)
        torch.testing.assert_close(out[:, :128], torch.full((2, 128), 448.0 * 128 * (1 + 2.0**-20)))
        torch.testing.assert_close(out[:, 128:], torch.full((2, 128), 448.0 * 128 * 2.0**30))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_older_chip_multiplies_activations_as_they_are(dtype, older_chip):
    x, residual, norm_weight, codes, scale, bias = draw(3, 5, 200, 48, dtype)
    alone = linear_f8_blocks_reference(x, codes, scale, bias, "none")
    for activations in WAYS:
        close(forms.linear_f8_blocks(x, codes, scale, bias, activations), x, codes, scale, bias, alone)
    got, total = forms.norm_linear_f8_blocks(x, residual, norm_weight, EPS, codes, scale, None, None, "token")
    wanted = norm_linear_f8_blocks_reference(x, residual, norm_weight, EPS, codes, scale, None, None, "none")
    assert torch.equal(total, wanted[1])
    torch.testing.assert_close(got, wanted[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("activations", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_with_residual_norm_and_gate_the_layer_is_that_of_its_parts(dtype, activations):
    x, residual, norm_weight, codes, scale, bias = draw(5, 3, 200, 160, dtype)
    for before in (None, residual):
        for gate in (None, "silu"):
            given_arguments = (x, before, norm_weight, EPS, codes, scale, bias, gate, activations)
            out, total = forms.norm_linear_f8_blocks(*given_arguments)
            wanted, wanted_total = norm_linear_f8_blocks_reference(*given_arguments)
            assert torch.equal(total, wanted_total)
            # a sum of squares that differs in its last place may move a number to the next code
            torch.testing.assert_close(out, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


@pytest.mark.parametrize("activations", WAYS)
def test_a_row_does_not_depend_on_the_others_and_keeps_its_nan(activations):
    x, residual, norm_weight, codes, scale, bias = draw(2, 6, 1100, 48, BF16)
    rest = (norm_weight, EPS, codes, scale, bias, "silu", activations)
    together, _ = forms.norm_linear_f8_blocks(x, residual, *rest)
    for row in (0, 5):
        alone, _ = forms.norm_linear_f8_blocks(x[row : row + 1], residual[row : row + 1], *rest)
        assert torch.equal(alone, together[row : row + 1])
    x[1], x[4, 7] = float("nan"), float("inf")
    spoilt, _ = forms.norm_linear_f8_blocks(x, residual, *rest)
    sound = [row for row in range(6) if row not in (1, 4)]
    assert spoilt[[1, 4]].isnan().all()
    assert torch.equal(spoilt[sound], together[sound])


@pytest.mark.parametrize("activations", WAYS)
def test_a_nan_code_spoils_its_output_and_a_nan_scale_its_block_alone(activations):
    x, _, _, codes, scale, _ = draw(7, 3, 200, 160, BF16)
    codes[5, 150] = float("nan")
    scale[1, 0] = float("nan")
    out = forms.linear_f8_blocks(x, codes, scale, None, activations)
    spoilt = torch.zeros(160, dtype=torch.bool)
    spoilt[5] = spoilt[128:] = True
    assert out[:, spoilt].isnan().all()
    assert out[:, ~spoilt].isfinite().all()


def test_torch_multiplies_many_tokens_where_it_has_the_product(monkeypatch):
    calls = []
    monkeypatch.setattr(forms, "torch_product", lambda x, *_: calls.append(("torch", len(x))) or x)
    monkeypatch.setattr(forms, "product_f8_blocks", lambda x, *_: calls.append(("own", len(x))) or x)

    def ran(num_tokens, dtype=BF16, size_in=256, size_out=128, activations="token"):
        x, _, _, codes, scale, _ = draw(0, num_tokens, size_in, size_out, dtype)
        forms.linear_f8_blocks(x, codes, scale, None, activations)
        return calls.pop()

    def rounded(x):
        return torch.zeros((-(-len(x) // ROWS) * ROWS, x.shape[1])), None, x

    monkeypatch.setattr(forms, "quantize_f8_blocks", rounded)

    monkeypatch.setattr(torch.version, "cuda", None)
    assert ran(65) == ("own", 65)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert ran(65) == ("own", 65)
    for version in ("12.9", "13.0"):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert ran(65) == ("torch", 68)
        assert ran(64) == ("own", 64)
    for odd in (
        {"dtype": F16},
        {"dtype": F32},
        {"size_in": 200},
        {"size_out": 144},
        {"activations": "none"},
    ):
        assert ran(65, **odd) == ("own", 65)
    for capability in (89, 100, 120):
        token = HOST.set(Chip("another chip", capability, 1))
        assert ran(65) == ("own", 65)
        HOST.reset(token)


@pytest.mark.parametrize("size_in", [128, 384, 512])
def test_torch_is_asked_for_scales_of_tokens_and_of_blocks_as_it_wants_them(monkeypatch, size_in):
    def scaled_mm(codes, weight, left, left_kind, right, right_kind, *, output_dtype, use_fast_accum):
        (rows, inner), outputs = codes.shape, weight.shape[1]
        blocks = inner // SIDE
        assert rows % 4 == 0
        assert weight.stride(0) == 1  # columns lie one after another
        assert (left_kind.name, right_kind.name) == ("BlockWise1x128", "BlockWise128x128")
        assert (left.shape, left.stride()) == ((rows, blocks), (1, rows))
        padded = -(-blocks // 4) * 4
        assert (right.shape, right.stride()) == ((padded, outputs // SIDE), (1, padded))
        assert not use_fast_accum  # sums of 8-bit floats are those of float32
        rows_scaled = codes.float() * left.repeat_interleave(SIDE, 1)
        columns_scaled = weight.float() * right[:blocks].repeat_interleave(SIDE, 0).repeat_interleave(SIDE, 1)
        return (rows_scaled @ columns_scaled).to(output_dtype)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", scaled_mm)
    x, _, _, codes, scale, bias = draw(9, 70, size_in, 256, BF16)
    for added in (None, bias):  # behind the product
        wanted = linear_f8_blocks_reference(x, codes, scale, added, "token")
        close(forms.linear_f8_blocks(x, codes, scale, added, "token"), x, codes, scale, added, wanted)


def test_what_is_packed_on_a_gpu_is_what_is_in_the_file(monkeypatch):
    x, residual, norm_weight, codes, scale, bias = draw(0, 2, 70, 32, BF16)
    packed = pack(codes)  # for a processor: blocks of outputs
    assert packed.dim() == 3
    both = [linear_f8_blocks_reference(x, weight, scale, bias, "token") for weight in (codes, packed)]
    assert torch.equal(*both)
    monkeypatch.setattr(linear_f8_blocks, "implementation", lambda _: forms.linear_f8_blocks)
    monkeypatch.setattr(norm_linear_f8_blocks, "implementation", lambda _: forms.norm_linear_f8_blocks)
    torch.testing.assert_close(linear_f8_blocks(x, codes, scale, bias, "token"), both[0])
    norm_linear_f8_blocks(x, residual, norm_weight, EPS, codes, scale, bias, "silu", "token")
    with pytest.raises(ValueError, match=r"scale: expected shape \[1, 1\], got \[2, 1\]"):
        linear_f8_blocks(x, codes, scale.repeat(2, 1), None, "token")
    with pytest.raises(ValueError, match=r"weight: expected shape \[32, 69\], got \[32, 70\]"):
        linear_f8_blocks(x[:, :69].contiguous(), codes, scale, None, "token")


def test_the_product_alone_takes_rows_that_reach_beyond_the_tokens():
    x, _, _, codes, scale, _ = draw(4, 5, 256, 64, F32)
    rounded, row_scale, _ = quantize_f8_blocks(x)
    assert row_scale.shape == (2, 8)
    out = product_f8_blocks(rounded[:5], row_scale, codes, scale, None, F32)
    close(out, x, codes, scale, None, linear_f8_blocks_reference(x, codes, scale, None, "token"))
