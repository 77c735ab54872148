"""Linear layers on 8-bit integers: the compiled form for every instruction set here against the reference."""

import hypothesis.strategies as st
import pytest
import torch
from coded_layers import DTYPES, random
from hypothesis import given, settings

from quire.kernels.cpu.linear import linear_int8 as cpu
from quire.kernels.cpu.native import load, runnable_sets
from quire.kernels.linear.activation import GATES, gated_activation_reference
from quire.kernels.linear.linear_int8 import (
    linear_int8,
    linear_int8_reference,
    norm_linear_int8,
    pack,
    pack_integers,
    quantize,
    unpack,
)

# ---- quantizing and packing ----


def test_a_quantized_row_is_off_by_at_most_half_a_step():
    x = random(50, 77) * torch.logspace(-20, 20, 50)[:, None]
    integers, scale = quantize(x)
    assert integers.abs().amax(1).eq(127).all()
    assert ((integers * scale[:, None] - x).abs() <= 0.5001 * scale[:, None]).all()


def test_halves_round_to_even_and_tiny_rows_to_zero():
    integers, scale = quantize(torch.tensor([[127.0, 0.5, 1.5, -2.5], [0.0, 0.0, 0.0, 0.0], [1e-40, 0.0, 0.0, -1e-40]]))
    assert integers.tolist() == [[127, 0, 2, -2], [0] * 4, [0] * 4]
    assert scale[0] == 1.0
    assert scale.isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_has_scale_nan(bad):
    x = random(3, 8)
    x[1, 5] = bad
    assert quantize(x)[1].isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 4), (17, 5), (33, 64), (5000, 3)])
def test_packing_keeps_every_integer_where_it_says(outputs, inputs):
    weight = random(outputs, inputs)
    packed, scale = pack(weight)
    integers, scales = quantize(weight)
    assert torch.equal(unpack(packed, outputs, inputs), integers)
    lowest = torch.full((outputs, inputs), -128, dtype=torch.int8)  # which quantizing never makes, but files hold
    assert torch.equal(unpack(pack_integers(lowest), outputs, inputs), lowest)
    assert torch.equal(pack_integers(integers), packed)
    assert torch.equal(scale, scales)
    o, i = outputs - 1, inputs - 1
    assert packed[o // 16, i // 4, o % 16, i % 4] == int(integers[o, i]) + 128
    assert packed.sum() == integers.sum(dtype=torch.int64) + 128 * packed.numel()  # all that lies beyond is 128


# ---- the product ----


@settings(max_examples=30)
@given(rows=st.integers(1, 40), inputs=st.integers(1, 150), outputs=st.integers(1, 100), seed=st.integers(0, 99))
def test_every_instruction_set_equals_the_reference_exactly(rows, inputs, outputs, seed):
    x = random(rows, inputs, seed=seed) * 10
    packed, scale = pack(random(outputs, inputs, seed=seed + 1))
    expected = linear_int8_reference(x, packed, scale, None)
    for name in runnable_sets():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cpu, "native", lambda name=name: load(name))
            assert torch.equal(linear_int8(x, packed, scale, None), expected), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_rounding_follow_the_reference_in_every_dtype(instruction_set, dtype):
    x, bias = random(13, 70, dtype=dtype), random(41, seed=2, dtype=dtype)
    packed, scale = pack(random(41, 70, seed=1, dtype=dtype))
    expected = linear_int8_reference(x, packed, scale, bias)
    # the last bit of x.dtype: sum and product are rounded apart in the reference
    torch.testing.assert_close(
        linear_int8(x, packed, scale, bias), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6
    )


def test_the_product_lies_within_the_error_of_both_quantizations(instruction_set):
    x, weight = random(20, 300), random(50, 300, seed=1)
    packed, scale = pack(weight)
    x_step, w_step = quantize(x)[1].double()[:, None], scale.double()[None, :]
    x, weight = x.double(), weight.double()
    bound = x_step * weight.abs().sum(1) / 2 + w_step * x.abs().sum(1, keepdim=True) / 2 + 300 * x_step * w_step / 4
    error = (linear_int8(x.float(), packed, scale, None) - x @ weight.T).abs()
    assert (error <= bound * 1.001).all()
    assert error.max() > 0  # or nothing was quantized


def test_sums_of_the_largest_integers_do_not_overflow(instruction_set):
    inputs = 20_000
    x, weight = torch.ones(2, inputs), -torch.ones(3, inputs)
    x[1] = -1
    packed, scale = pack(weight)
    expected = torch.tensor([[-inputs] * 3, [inputs] * 3], dtype=torch.float32)
    torch.testing.assert_close(linear_int8(x, packed, scale, None), expected, rtol=1e-6, atol=0.0)


# ---- with norm and activation ----


@pytest.mark.parametrize("gate", list(GATES))
def test_activations_hold_from_deep_in_the_tail_to_large_numbers(instruction_set, gate):
    # weights of zero: the sum is the bias, which runs over the numbers of interest
    numbers = torch.cat((torch.linspace(-12, 12, 1000), torch.tensor([-50.0, -1e4, 0.0, 50.0, 1e4, 30.0, -30.0, 1.0])))
    count = 1008
    packed, scale = pack(torch.zeros(2 * count, 4))
    bias = torch.cat((numbers, torch.ones(count)))
    out, _ = norm_linear_int8(torch.ones(1, 4), None, torch.ones(4), 1e-6, packed, scale, bias, gate)
    expected = gated_activation_reference(bias.double()[None], gate).float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-14)


# ---- refusals ----


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.ones(2, 9)}, "weight: expected shape"),
        ({"x": torch.ones(2, 8, dtype=torch.int32)}, "x: expected"),
        ({"x": torch.ones(8, 2).T}, "x: must be contiguous"),
        ({"weight": torch.zeros(2, 2, 16, 4)}, "weight: expected torch.uint8"),
        ({"scale": torch.ones(40)}, "weight: expected shape"),
        ({"bias": torch.ones(31)}, "bias: expected shape"),
        ({"bias": torch.ones(32, dtype=torch.float16)}, "bias: expected torch.float32"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, words):
    packed, scale = pack(torch.ones(32, 8))
    arguments = {"x": torch.ones(2, 8), "weight": packed, "scale": scale, "bias": None} | change
    with pytest.raises(ValueError, match=words):
        linear_int8(*arguments.values())


def test_an_odd_number_of_outputs_cannot_be_gated():
    packed, scale = pack(torch.ones(33, 8))
    with pytest.raises(ValueError, match="even number"):
        norm_linear_int8(torch.ones(2, 8), None, torch.ones(8), 1e-6, packed, scale, None, "silu")
