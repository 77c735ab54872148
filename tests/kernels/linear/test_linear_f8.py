"""Linear layers on 8-bit floats: what codes mean, how rows become codes, and the references against float64."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from quire.kernels.linear import linear_f8 as rows_of
from quire.kernels.linear import linear_f8_blocks as blocks_of
from quire.kernels.linear.linear_f8 import gated_linear_f8, linear_f8, norm_linear_f8, quantize, unpack
from quire.kernels.linear.linear_f8_blocks import gated_linear_f8_blocks, linear_f8_blocks, norm_linear_f8_blocks

F8 = torch.float8_e4m3fn
sizes = settings(max_examples=40)


def value(code: int) -> float:
    """What a code means, as the format is written down."""
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-9
    return math.copysign(math.nan if code & 127 == 127 else magnitude, -1 if code & 128 else 1)


VALUES = torch.tensor([value(code) for code in range(256)], dtype=torch.float64)


def values(codes):
    """The numbers of a tensor of codes, in float64."""
    return VALUES[codes.view(torch.uint8).int()]


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_codes(outputs, inputs, seed=0):
    """Any code but NaN, so many of them tiny or saturated."""
    body = torch.randint(0, 127, (outputs, inputs), generator=torch.Generator().manual_seed(seed))
    return (body + 128 * (random(outputs, inputs, seed=seed) > 0)).to(torch.uint8).view(F8)


def nearest(x):
    """The code of each number in float64: nearest, ties to the even one; saturating."""
    positive = VALUES[:127]
    magnitude = x.abs().clamp(max=448.0)
    above = torch.searchsorted(positive, magnitude).clamp(1, 126)
    low, high = positive[above - 1], positive[above]
    up = (magnitude - low > high - magnitude) | ((magnitude - low == high - magnitude) & (above % 2 == 0))
    return torch.where(up, above, above - 1) + 128 * (x.signbit())


# ---- codes ----


def test_every_code_keeps_its_place_and_means_what_the_format_says():
    codes = torch.arange(256, dtype=torch.uint8).repeat(16, 1)
    codes = torch.stack([row.roll(shift) for shift, row in enumerate(codes)]).view(F8)
    stored = unpack(rows_of.pack(codes), 16, 256)
    assert torch.equal(stored.view(torch.uint8), codes.view(torch.uint8))
    torch.testing.assert_close(stored.double(), values(codes), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 4), (17, 5), (33, 64), (50, 3)])
def test_packing_keeps_every_code_where_it_says(outputs, inputs):
    codes = random_codes(outputs, inputs)
    packed = rows_of.pack(codes)
    assert packed.shape == (-(-outputs // 16), 4 * -(-inputs // 4) + 4, 16)
    raw, o, i = packed.view(torch.uint8), outputs - 1, inputs - 1
    assert raw[o // 16, i, o % 16] == codes.view(torch.uint8)[o, i]
    assert raw.sum(dtype=torch.int64) == codes.view(torch.uint8).sum(dtype=torch.int64)  # all that lies beyond is 0
    assert torch.equal(unpack(packed, outputs, inputs).view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("nan", [0x7F, 0xFF])
def test_a_packed_weight_says_which_outputs_hold_a_nan(nan):
    codes = random_codes(20, 7)
    codes.view(torch.uint8)[17, 6] = nan
    starts = rows_of.pack(codes)[:, -4:].reshape(2, -1).view(torch.uint8).view(torch.float32)
    assert starts.flatten().isnan().nonzero().tolist() == [[17]]
    assert starts.nan_to_num().eq(0).all()


# ---- rows become codes ----


@sizes
@given(st.integers(1, 20), st.integers(1, 70), st.integers(-20, 20), st.integers(0, 99))
def test_a_row_is_rounded_to_the_nearest_codes_of_its_scale(rows, inputs, power, seed):
    x = random(rows, inputs, seed=seed) * 10.0**power
    codes, scale = quantize(x, None)
    assert torch.equal(scale, x.abs().amax(1) / 448)
    assert torch.equal(codes.view(torch.uint8).long(), nearest((x / scale[:, None]).double()))


def test_a_scale_that_is_given_rounds_halves_to_even_and_saturates():
    steps = torch.tensor([[1.0, 17, 19, 0.0009765625, 0.0029296875, 447, 465, 1e30, -1e30]])
    codes, scale = quantize(steps * 0.5, torch.tensor([0.5]))
    wanted = [1.0, 16, 20, 0.0, 0.00390625, 448, 448, 448, -448]
    assert codes.float().tolist() == [wanted]
    assert scale.tolist() == [0.5]


def test_rows_of_zeros_and_of_next_to_nothing_become_zeros():
    codes, scale = quantize(torch.tensor([[0.0, -0.0], [1e-40, -1e-40]]), None)
    assert codes.float().abs().sum() == 0
    assert scale.isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("given_scale", [None, torch.tensor([2.0])])
def test_a_row_that_is_not_finite_has_scale_nan(bad, given_scale):
    x = random(3, 8)
    x[1, 5] = bad
    assert quantize(x, given_scale)[1].isnan().tolist() == [False, True, False]


# ---- products ----


def exact_rows(x, codes, scale, bias, activations, input_scale):
    """`linear_f8` in float64, and what its terms come to at most."""
    weights = values(codes) * scale.double()[:, None]
    if activations != "none":
        scales = torch.stack([row.abs().max().clamp(min=1e-30) / 448 for row in x.float()])
        scales = scales if activations == "token" else input_scale.expand(x.shape[0])
        x = VALUES[nearest((x.float() / scales[:, None]).double())] * scales.double()[:, None]
    bias = 0.0 if bias is None else bias.double()
    return x.double() @ weights.T + bias, x.double().abs() @ weights.abs().T + abs(bias)


def exact_blocks(x, codes, scale, bias, activations):
    """`linear_f8_blocks` in float64, and what its terms come to at most."""
    parts = [
        exact_rows(
            x[:, 128 * block : 128 * block + 128],
            codes[:, 128 * block : 128 * block + 128],
            scale[:, block].repeat_interleave(128)[: codes.shape[0]],
            None,
            activations,
            None,
        )
        for block in range(scale.shape[1])
    ]
    bias = torch.zeros(codes.shape[0], dtype=torch.float64) if bias is None else bias.double()
    return sum(out for out, _ in parts) + bias, sum(size for _, size in parts) + bias.abs()


@sizes
@given(
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from(["token", "static", "none"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_reference_of_rows_is_the_product_in_float64(rows, inputs, outputs, activations, has_bias, seed):
    x, codes = random(rows, inputs, seed=seed), random_codes(outputs, inputs, seed=seed)
    scale, bias = random(outputs, seed=seed + 1).abs(), random(outputs, seed=seed + 2) if has_bias else None
    input_scale = torch.tensor([0.003]) if activations == "static" else None
    exact, size = exact_rows(x, codes, scale, bias, activations, input_scale)
    out = rows_of.linear_f8_reference(x, rows_of.pack(codes), scale, bias, activations, input_scale)
    assert ((out - exact).abs() <= 1e-5 * size).all()


@sizes
@given(
    st.integers(1, 5),
    st.integers(1, 400),
    st.integers(1, 20),
    st.sampled_from(["token", "none"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_reference_of_blocks_is_the_product_in_float64(rows, inputs, blocks, activations, has_bias, seed):
    outputs = 16 * blocks
    x, codes = random(rows, inputs, seed=seed), random_codes(outputs, inputs, seed=seed)
    scale = random(-(-outputs // 128), -(-inputs // 128), seed=seed + 1)
    bias = random(outputs, seed=seed + 2) if has_bias else None
    exact, size = exact_blocks(x, codes, scale, bias, activations)
    out = blocks_of.linear_f8_blocks_reference(x, blocks_of.pack(codes), scale, bias, activations)
    assert ((out - exact).abs() <= 1e-5 * size).all()


@sizes
@given(st.integers(0, 5), st.integers(1, 40), st.sampled_from(["token", "static", "none"]), st.integers(0, 99))
def test_the_reference_behind_a_gate_is_the_product_of_what_the_gate_makes_in_float64(rows, inputs, activations, seed):
    x, codes, scale = random(rows, 2 * inputs, seed=seed), random_codes(16, inputs, seed=seed), torch.ones(16)
    gate, up = x.chunk(2, 1)
    gated = gate / (1 + torch.exp(-gate)) * up
    input_scale = torch.tensor([0.003]) if activations == "static" else None
    if rows:  # a number near the middle of two codes may become the other one
        exact, size = exact_rows(gated, codes, scale, None, activations, input_scale)
        out = gated_linear_f8(x, "silu", rows_of.pack(codes), scale, None, activations, input_scale)
        assert ((out - exact).abs() <= (1e-5 if activations == "none" else 0.07) * size).all()
    if activations != "static":
        out = gated_linear_f8_blocks(x, "silu", blocks_of.pack(codes), torch.ones(1, 1), None, activations)
        wanted = gated_linear_f8(x, "silu", rows_of.pack(codes), scale, None, activations, None)
        torch.testing.assert_close(out, wanted)  # one block is a row


# ---- refusals ----

ROWS = {
    "x": torch.ones(2, 8),
    "weight": rows_of.pack(random_codes(40, 8)),
    "scale": torch.ones(40),
    "bias": None,
    "activations": "token",
    "input_scale": None,
}
BLOCKS = {
    "x": torch.ones(2, 200),
    "weight": blocks_of.pack(random_codes(144, 200)),
    "scale": torch.ones(2, 2),
    "bias": None,
    "activations": "token",
}


@pytest.mark.parametrize(
    ("arguments", "change", "words"),
    [
        (ROWS, {"x": torch.ones(2, 9)}, "weight: expected shape"),
        (ROWS, {"x": torch.ones(2, 8, dtype=torch.int32)}, "x: expected"),
        (ROWS, {"x": torch.ones(8, 2).T}, "x: must be contiguous"),
        (ROWS, {"weight": torch.zeros(3, 12, 16)}, "weight: expected torch.float8_e4m3fn"),
        (ROWS, {"scale": torch.ones(50)}, "weight: expected shape"),
        (ROWS, {"scale": torch.ones(40, dtype=torch.bfloat16)}, "scale: expected torch.float32"),
        (ROWS, {"bias": torch.ones(39)}, "bias: expected shape"),
        (ROWS, {"bias": torch.ones(40, dtype=torch.float16)}, "bias: expected torch.float32"),
        (ROWS, {"activations": "dynamic"}, "activations: must be one of token, static, none, got 'dynamic'"),
        (ROWS, {"activations": "static"}, "input_scale: goes with activations 'static' alone, got none"),
        (ROWS, {"input_scale": torch.ones(1)}, "input_scale: goes with activations 'static' alone, got one"),
        (ROWS, {"activations": "static", "input_scale": torch.ones(2)}, "input_scale: expected shape"),
        (BLOCKS, {"x": torch.ones(2, 205)}, "weight: expected shape"),
        (BLOCKS, {"scale": torch.ones(2, 3)}, "scale: expected shape"),
        (BLOCKS, {"scale": torch.ones(2, 2).double()}, "scale: expected torch.float32"),
        (BLOCKS, {"bias": torch.ones(100)}, "bias: expected shape"),
        (BLOCKS, {"activations": "static"}, "activations: must be token or none"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, change, words):
    operation = linear_f8 if arguments is ROWS else linear_f8_blocks
    assert operation(*arguments.values()).isfinite().all()
    with pytest.raises(ValueError, match=words):
        operation(*(arguments | change).values())


def test_an_odd_number_of_outputs_cannot_be_gated():
    packed = rows_of.pack(random_codes(33, 8))
    with pytest.raises(ValueError, match="even number"):
        norm_linear_f8(torch.ones(2, 8), None, torch.ones(8), 1e-6, packed, torch.ones(33), None, "silu", "token", None)
    with pytest.raises(ValueError, match="gate: expected None or one of silu"):
        norm_linear_f8_blocks(
            BLOCKS["x"], None, torch.ones(200), 1e-6, BLOCKS["weight"], BLOCKS["scale"], None, "relu", "token"
        )


@pytest.mark.parametrize(
    ("x", "kind", "words"),
    [
        (torch.ones(2, 17), "silu", "x: the last dimension holds gate and up, so it must be even, got 17"),
        (torch.ones(2, 18), "silu", r"weight: expected shape \[3, 16, 16\], got \[3, 12, 16\]"),
        (torch.ones(16, 2).T, "silu", "x: must be contiguous"),
        (torch.ones(2, 16), "relu", "kind: must be one of silu"),
    ],
)
def test_what_is_no_gate_and_up_of_the_layer_is_refused(x, kind, words):
    with pytest.raises(ValueError, match=words):
        gated_linear_f8(x, kind, ROWS["weight"], ROWS["scale"], None, "token", None)


def test_what_cannot_be_packed_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="multiple of 16 outputs, got 20; pad them"):
        blocks_of.pack(random_codes(20, 8))
    with pytest.raises(ValueError, match=r"weight: expected torch\.float8_e4m3fn"):
        rows_of.pack(torch.ones(16, 8))
