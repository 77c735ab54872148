"""Products of 8-bit integers in the interpreter, equal to their references to the bit, and what runs where."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.linear.activation import gated_activation
from quire.kernels.gpu.quantized import linear_int8 as forms
from quire.kernels.gpu.quantized.product_f8 import tiles_for
from quire.kernels.gpu.quantized.product_int8 import product_int8
from quire.kernels.gpu.quantized.quantize_f8 import WIDEST, Norm
from quire.kernels.gpu.quantized.quantize_int8 import quantize_int8
from quire.kernels.linear import linear_int8 as operations
from quire.kernels.linear.activation import GATES
from quire.kernels.linear.linear_int8 import MOST_INPUTS, linear_int8_reference, norm_linear_int8_reference, quantize
from quire.kernels.linear.norm import residual_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BF16, F16, F32]


def draw(seed, num_tokens, size_in, size_out, dtype):
    """x, residual, norm weight, integers, scale, bias"""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_tokens, size_in), (num_tokens, size_in), (size_in,), (size_out,))
    x, residual, norm_weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    integers = torch.randint(-128, 128, (size_out, size_in), generator=generator, dtype=torch.int8)
    return x, residual, norm_weight, integers, torch.rand(size_out, generator=generator) / 64, bias


@settings(max_examples=25)
@given(
    rows=st.integers(0, 5),
    size=st.sampled_from([1, 3, 16, 33, 100, 5000, WIDEST + 100]),
    dtype=st.sampled_from(DTYPES),
    norm=st.sampled_from(["", "alone", "residual"]),
    magnitude=st.sampled_from([1e-38, 1e-6, 1.0, 900.0]),
    seed=st.integers(0, 99),
)
def test_rows_are_rounded_as_the_reference_rounds_them(rows, size, dtype, norm, magnitude, seed):
    x, residual, norm_weight, *_ = draw(seed, rows, size, 1, dtype)
    x *= magnitude
    residual = residual if norm == "residual" else None
    integers, scales, total = quantize_int8(x, Norm(residual, norm_weight, 1e-5) if norm else None)
    normed, expected_total = residual_norm_reference(x, residual, norm_weight, 1e-5) if norm else (x, x)
    assert torch.equal(total, expected_total)
    expected, expected_scales = quantize(normed)
    if not norm:
        assert torch.equal(integers, expected)
        assert torch.equal(scales, expected_scales)
        return
    # sums of squares are added in another order: a step of the norm moves its largest element
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(scales, expected_scales, rtol=tolerance, atol=0)
    error = (integers * scales[:, None] - normed.float()).abs()
    assert (error <= 0.5001 * scales[:, None] + tolerance * normed.float().abs()).all()


def test_halves_are_rounded_to_even():
    halves = torch.cat((torch.arange(-126.5, 127), torch.tensor([127.0])))[None]
    integers, scales, _ = quantize_int8(halves)
    assert scales.tolist() == [1.0]
    assert (integers[0, :-1] % 2 == 0).all()
    assert torch.equal(integers, quantize(halves)[0])


@pytest.mark.parametrize("size", [5000, WIDEST + 100])
def test_a_row_with_nan_or_infinity_has_zeros_and_a_scale_of_nan(size):
    x = torch.zeros((4, size), dtype=BF16)
    x[1, -1], x[2, 0], x[3, 7] = float("nan"), float("-inf"), 2.0
    integers, scales, _ = quantize_int8(x)
    assert scales.isnan().tolist() == [False, True, True, False]
    assert integers.count_nonzero(1).tolist() == [0, 0, 0, 1]
    assert torch.equal(scales[[0, 3]], quantize(x)[1][[0, 3]])


@settings(max_examples=20)
@given(
    num_tokens=st.sampled_from([1, 2, 15, 17, 33, 65, 70]),
    size_in=st.sampled_from([1, 16, 70, 128, 200, 1040]),
    size_out=st.sampled_from([1, 16, 70, 128, 130]),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_products_are_the_reference_to_the_bit(num_tokens, size_in, size_out, dtype, has_bias, seed):
    x, _, _, integers, scale, bias = draw(seed, num_tokens, size_in, size_out, dtype)
    bias = bias if has_bias else None
    wanted = linear_int8_reference(x, integers, scale, bias)
    assert torch.equal(forms.linear_int8(x, integers, scale, bias), wanted)
    has_both = num_tokens > 64 and size_in % 8 == size_out % 8 == 0
    for product in (product_int8, forms.torch_product) if has_both else (product_int8,):
        assert torch.equal(product(*quantize(x), integers, scale, bias, dtype), wanted)


def test_the_most_sums_of_the_largest_integers_fit():
    size_in = MOST_INPUTS // 128 * 128
    x, weight = torch.ones((2, size_in)), torch.full((3, size_in), -128, dtype=torch.int8)
    x[1] = -1
    assert tiles_for(2, size_in, 3, torch.int8)["parts"] > 1  # parts of integers are added as integers
    out = forms.linear_int8(x, weight, torch.ones(3), None)
    torch.testing.assert_close(out, 128.0 * torch.tensor([[-size_in] * 3, [size_in] * 3]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_residual_norm_and_gate_the_layer_is_that_of_its_parts(dtype):
    x, residual, norm_weight, integers, scale, bias = draw(5, 3, 96, 40, dtype)
    for before in (None, residual):
        for gate in (None, "silu"):
            given_arguments = (x, before, norm_weight, 1e-5, integers, scale, bias, gate)
            out, total = forms.norm_linear_int8(*given_arguments)
            wanted, wanted_total = norm_linear_int8_reference(*given_arguments)
            assert torch.equal(total, wanted_total)
            # a sum of squares that differs in its last place may move a number to the next integer
            torch.testing.assert_close(out, wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


@settings(max_examples=20)
@given(
    rows=st.integers(0, 5),
    size=st.sampled_from([1, 3, 16, 100, 5000, WIDEST + 100]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(list(GATES)),
    magnitude=st.sampled_from([1e-6, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_a_gate_in_the_launch_that_rounds_is_the_gate_before_it_to_the_bit(rows, size, dtype, kind, magnitude, seed):
    x = draw(seed, rows, 2 * size, 1, dtype)[0] * magnitude
    integers, scales, _ = quantize_int8(x, gate=kind)
    expected, expected_scales = quantize(gated_activation(x, kind))
    assert torch.equal(integers, expected)
    torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", list(GATES))
def test_a_gated_layer_is_the_layer_of_what_the_gate_makes(kind):
    x, _, _, integers, scale, bias = draw(6, 70, 2 * 1104, 80, BF16)
    rest = (integers[:, :1104].contiguous(), scale, bias)
    together = forms.gated_linear_int8(x, kind, *rest)
    assert torch.equal(together, linear_int8_reference(gated_activation(x, kind), *rest))
    assert torch.equal(forms.gated_linear_int8(x[7:8], kind, *rest), together[7:8])
    x[1, 1104] = float("nan")
    spoilt = forms.gated_linear_int8(x, kind, *rest)
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[2:], together[2:])


def test_a_row_does_not_depend_on_the_others_and_keeps_its_nan():
    """Whichever product the batch takes: 70 tokens are torch's."""
    x, residual, norm_weight, integers, scale, bias = draw(2, 70, 1104, 80, BF16)
    rest = (norm_weight, 1e-5, integers, scale, bias, "silu")
    together, _ = forms.norm_linear_int8(x, residual, *rest)
    for rows in (slice(0, 1), slice(60, 70)):
        alone, _ = forms.norm_linear_int8(x[rows], residual[rows], *rest)
        assert torch.equal(alone, together[rows])
    x[1], x[4, 7] = float("nan"), float("inf")
    for count in (70, 10):
        spoilt, _ = forms.norm_linear_int8(x[:count], residual[:count], *rest)
        sound = [row for row in range(count) if row not in (1, 4)]
        assert spoilt[[1, 4]].isnan().all()
        assert torch.equal(spoilt[sound], together[sound])


def test_torch_multiplies_many_tokens_where_it_has_the_product(monkeypatch):
    calls = []
    monkeypatch.setattr(forms, "torch_product", lambda x, *_: calls.append(("torch", len(x))) or x)
    monkeypatch.setattr(forms, "quantize_int8", lambda x: (*quantize(x), x))
    monkeypatch.setattr(forms, "product_int8", lambda x, *_: calls.append(("own", len(x))) or x)
    for num_tokens, dtype, size_in, size_out in (
        (64, BF16, 32, 48),
        (65, BF16, 32, 48),
        (65, F32, 40, 56),
        (66, F16, 8, 8),
        (65, BF16, 36, 48),
        (65, BF16, 32, 44),
        (0, BF16, 32, 48),
    ):
        x, _, _, integers, scale, _ = draw(0, num_tokens, size_in, size_out, dtype)
        forms.linear_int8(x, integers, scale, None)
    assert [name for name, _ in calls] == ["own", "torch", "torch", "torch", "own", "own", "own"]


@pytest.mark.parametrize("num_tokens", [65, 95, 130])
def test_pieces_of_tokens_are_what_torch_takes_and_change_nothing(num_tokens, monkeypatch):
    asked, whole = [], torch._int_mm

    def int_mm(left, right):
        asked.append(len(left))
        assert len(left) > 16
        assert left.is_contiguous()
        assert right.stride(0) == 1  # columns lie one after another
        assert left.shape[1] % 8 == right.shape[1] % 8 == 0
        return whole(left, right)

    monkeypatch.setattr(torch, "_int_mm", int_mm)
    x, _, _, integers, scale, bias = draw(9, num_tokens, 24, 48, BF16)
    wanted = linear_int8_reference(x, integers, scale, bias)
    for most, pieces in ((1, num_tokens // 32), (100 * 48 * 4, -(-num_tokens // 100)), (forms.SUM_BYTES, 1)):
        monkeypatch.setattr(forms, "SUM_BYTES", most)
        asked.clear()
        assert torch.equal(forms.torch_product(*quantize(x), integers, scale, bias, BF16), wanted)
        assert (len(asked), sum(asked)) == (pieces, num_tokens)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_is_packed_into_the_reference_s_integers_as_they_are(dtype):
    weight = draw(3, 37, 70, 1, dtype)[0]
    weight[4, 2], weight[5] = float("nan"), 0
    integers, scale = forms.pack(weight)
    packed, expected_scale = operations.pack(weight)
    assert torch.equal(integers, operations.unpack(packed, 37, 70))
    assert torch.equal(scale.nan_to_num(-1), expected_scale.nan_to_num(-1))
    assert forms.pack_integers(integers) is integers
    assert operations.unpack(integers, 37, 70) is integers


def test_integers_as_they_are_pass_the_check_of_their_shape():
    x, _, _, integers, scale, _ = draw(0, 2, 70, 24, BF16)
    operations.linear_int8._check(x, integers, scale, None)
    for change, words in (
        ({"scale": scale[:23]}, r"weight: expected shape \[23, 70\], got \[24, 70\]"),
        ({"x": x[:, :69].contiguous()}, r"weight: expected shape \[24, 69\], got \[24, 70\]"),
        ({"weight": integers.view(torch.uint8)}, "weight: expected torch.int8"),
    ):
        arguments = {"x": x, "weight": integers, "scale": scale, "bias": None} | change
        with pytest.raises(ValueError, match=words):
            operations.linear_int8._check(**arguments)
    wide = torch.empty((1, MOST_INPUTS + 1), dtype=BF16)
    with pytest.raises(ValueError, match=f"at most {MOST_INPUTS} inputs"):
        operations.linear_int8._check(wide, wide.to(torch.int8), scale[:1], None)
