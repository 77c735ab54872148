"""Linear layers on groups of codes of 4 to 8 bits: packing, how rows become integers, and the reference in float64."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from quire.kernels.linear.code_tables import TABLES
from quire.kernels.linear.linear_groups import (
    linear_groups,
    linear_groups_reference,
    norm_linear_groups,
    norm_linear_groups_reference,
    pack,
    pack_scale,
    quantize,
    unpack,
    unpack_scale,
)
from quire.kernels.linear.norm import rms_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OFFSETS = ("none", "zeros", "minima")
sizes = settings(max_examples=60)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_codes(*shape, bits, seed=0):
    return torch.randint(0, 2**bits, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def random_groups(outputs, groups, offset, bits, dtype, seed=0):
    """Scales, some of them 0, and offsets of that kind."""
    scale = (random(outputs, groups, seed=seed) / 2**bits).to(dtype)
    scale.view(-1)[:: 7 + seed] = 0
    if offset == "none":
        return scale, None
    zeros = random_codes(outputs, groups, bits=bits, seed=seed + 1)
    return scale, zeros if offset == "zeros" else random(outputs, groups, seed=seed + 1, dtype=dtype)


# ---- packing ----


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (16, 32), (17, 96), (50, 64), (4100, 32)])
def test_packing_keeps_every_code_where_it_says(bits, outputs, inputs):
    codes = random_codes(outputs, inputs, bits=bits)
    packed = pack(codes, bits)
    assert packed.shape == (-(-outputs // 16), inputs * bits // 32, 16, 4)
    for o, i in ((0, 0), (outputs - 1, inputs - 1), (outputs // 2, 5), (outputs // 3, 27)):
        if bits == 8:
            assert packed[o // 16, i // 4, o % 16, i % 4] == codes[o, i]
        else:
            words = {4: 1, 5: 5, 6: 3}[bits]  # of a step of inputs
            step, place = divmod(i, words * 32 // bits)
            own = packed[o // 16, words * step :, o % 16, i % 4]
            assert own[place // 8] >> (place % 8 // 4 * 4) & 15 == codes[o, i] & 15
            if bits > 4:
                assert own[words - 1] >> (place // 4 * (bits - 4)) & (1 << bits - 4) - 1 == codes[o, i] >> 4
    assert torch.equal(unpack(packed, bits, outputs, inputs), codes)
    assert not packed.view(packed.shape[0], -1, 16, 4).transpose(1, 2).flatten(0, 1)[outputs:].any()


@pytest.mark.parametrize("dtype", [torch.uint8, *DTYPES])
@pytest.mark.parametrize(("outputs", "groups"), [(1, 1), (16, 3), (32, 1), (37, 5), (7, 2)])
def test_packed_scales_have_the_outputs_of_a_block_together(dtype, outputs, groups):
    scale = torch.arange(outputs * groups).view(outputs, groups).to(dtype)
    packed = pack_scale(scale)
    assert (packed.dtype, packed.shape, packed.is_contiguous()) == (dtype, scale.shape, True)
    o, g = outputs - 1, groups - 1
    first, width = o // 16 * 16, min(16, outputs - o // 16 * 16)
    assert packed.view(-1)[first * groups + g * width + o - first] == scale[o, g]
    assert torch.equal(unpack_scale(packed), scale)


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="codes: must be at most 63 where they have 6 bits, got 64"):
        pack(torch.full((3, 32), 64, dtype=torch.uint8), 6)
    with pytest.raises(ValueError, match="codes: must be at most 15 where they have 4 bits, got 16"):
        pack(torch.full((3, 32), 16, dtype=torch.uint8), 4)
    with pytest.raises(ValueError, match="codes: inputs must be a multiple of 32, got 40"):
        pack(random_codes(3, 40, bits=8), 8)
    with pytest.raises(ValueError, match=r"codes: expected torch\.uint8"):
        pack(torch.ones(3, 32), 8)


# ---- rows become integers ----


@sizes
@given(st.integers(0, 9), st.integers(1, 5), st.integers(-20, 20), st.integers(0, 99))
def test_32_inputs_are_rounded_to_the_nearest_integers_of_their_scale(rows, blocks, power, seed):
    x = random(rows, 32 * blocks, seed=seed) * 10.0**power
    integers, scale = quantize(x)
    wide = x.view(rows, blocks, 32)
    assert torch.equal(scale, wide.abs().amax(2) / 127)
    assert integers.abs().amax(2).eq(127).all()
    off = (integers.double() * scale.double()[..., None] - wide.double()).abs()
    assert (off <= scale.double()[..., None] * 0.500001).all()


def test_halves_round_to_even_and_zeros_have_scale_1():
    x = torch.zeros(1, 96)
    x[0, :6] = torch.tensor([127.0, 0.5, 1.5, -0.5, -2.5, 3.5])
    x[0, 64:] = 1e-40
    integers, scale = quantize(x)
    assert integers[0, 0, :6].tolist() == [127, 0, 2, 0, -2, 4]
    assert scale.tolist() == [[1, 1, 1]]
    assert not integers[0, 1:].any()


# ---- products ----


def exact_product(x, codes, scale, offset, bias, bits, activations):
    """`linear_groups` in float64, and what its terms come to at most."""
    size = codes.shape[1] // scale.shape[1]
    zeros = torch.tensor(2.0 ** (bits - 1)) if offset is None else offset
    least = zeros.double() if offset is not None and offset.dtype != torch.uint8 else scale.double() * zeros.double()
    wide = codes.double() * scale.double().repeat_interleave(size, 1)
    least = least.repeat_interleave(size, 1)
    rows = x.double()
    if activations == "int8":
        blocks = x.float().view(x.shape[0], x.shape[1] // 32, 32)
        step = blocks.abs().amax(2, keepdim=True) / 127
        step = torch.where(step > 0, step, 1.0)
        rows = ((blocks / step).round().double() * step.double()).view(x.shape)
    bias = torch.zeros(codes.shape[0]) if bias is None else bias
    terms = rows.abs() @ (wide.abs() + least.abs()).T + bias.double().abs()
    return rows @ (wide - least).T + bias.double(), terms


@sizes
@given(
    rows=st.integers(0, 9),
    shape=st.sampled_from([(16, 6), (32, 1), (32, 3), (64, 2), (96, 1), (128, 3), (256, 1)]),
    outputs=st.integers(1, 70),
    offset=st.sampled_from(OFFSETS),
    stored=st.sampled_from([*DTYPES, torch.int8]),
    dtype=st.sampled_from(DTYPES),
    bits=st.sampled_from([4, 5, 6, 8]),
    activations=st.sampled_from(["int8", "none"]),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_reference_is_the_product_in_float64(
    rows, shape, outputs, offset, stored, dtype, bits, activations, has_bias, seed
):
    """Units of int8 scales and minima are those of half of the groups, or of all where these are odd."""
    (size, groups), kinds = shape, (bits, activations)
    size, unit = max(size, 16 if bits == 6 else 32), None
    x, codes = random(rows, size * groups, seed=seed, dtype=dtype), random_codes(outputs, size * groups, bits=bits)
    if stored == torch.int8:
        levels, units = random_codes(2, outputs, groups, bits=7, seed=seed).to(torch.int8), 2 - groups % 2
        levels[0] = levels[0] - 64
        unit = random(1 + (offset == "minima"), outputs, units, seed=seed, dtype=torch.float16) / 500
        scale, offset = levels[0], levels[1] if offset == "minima" else None
    else:
        scale, offset = random_groups(outputs, groups, offset, bits, stored, seed)
    meant = [
        one
        if one is None or unit is None
        else one.double() * unit[number].double().repeat_interleave(groups // units, 1)
        for number, one in enumerate((scale, offset))
    ]
    bias = random(outputs, seed=seed + 2, dtype=dtype) if has_bias else None
    exact, terms = exact_product(x, codes, *meant, bias, *kinds)
    unit = None if unit is None else torch.stack([pack_scale(one) for one in unit])
    offset = None if offset is None else pack_scale(offset)
    out = linear_groups(x, pack(codes, bits), pack_scale(scale), offset, bias, *kinds, unit)
    assert (out.dtype, out.shape) == (dtype, (rows, outputs))
    rounding = torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
    assert ((out.double() - exact).abs() <= 1e-5 * terms + rounding).all()


@pytest.mark.parametrize(("code", "bits"), [(0, 4), (15, 4), (31, 5), (63, 6), (0, 8), (255, 8)])
@pytest.mark.parametrize("activations", ["int8", "none"])
def test_sums_of_the_smallest_and_largest_codes_are_exact(code, bits, activations):
    value = 127.0 if activations == "int8" else 128.0  # float32 holds every sum of these
    codes, x = torch.full((5, 4096), code, dtype=torch.uint8), torch.full((2, 4096), value)
    scale = torch.ones(5, 1)
    symmetric = linear_groups(x, pack(codes, bits), scale, None, None, bits, activations)
    assert torch.equal(symmetric, torch.full((2, 5), value * 4096 * (code - 2 ** (bits - 1))))
    zeros = torch.full((5, 1), 3, dtype=torch.uint8)
    out = linear_groups(x, pack(codes, bits), scale, zeros, None, bits, activations)
    assert torch.equal(out, torch.full((2, 5), value * 4096 * (code - 3)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("activations", ["int8", "none"])
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_row_that_is_not_finite_spoils_no_other_row(bad, activations, offset):
    scale, offset = random_groups(20, 2, offset, 4, torch.float32)
    packed, x = pack(random_codes(20, 64, bits=4), 4), random(3, 64)
    arguments = (packed, pack_scale(scale), None if offset is None else pack_scale(offset), None, 4, activations)
    clean = linear_groups(x, *arguments)
    x[1, 40] = bad
    out = linear_groups(x, *arguments)
    assert not out[1].isfinite().any()
    assert activations == "none" or out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("gate", [None, "silu"])
def test_the_norm_goes_before_and_the_gate_behind(gate):
    x, residual, gain, bias = random(3, 64), random(3, 64, seed=1), random(64, seed=2), random(20, seed=3)
    scale, offset = random_groups(20, 2, "zeros", 4, torch.float16)
    arguments = (pack(random_codes(20, 64, bits=4), 4), pack_scale(scale), pack_scale(offset), bias)
    out, total = norm_linear_groups_reference(x, residual, gain, 1e-5, *arguments, gate, 4, "int8")
    wide = linear_groups_reference(rms_norm(residual + x, gain, 1e-5), *arguments, 4, "int8")
    assert torch.equal(total, residual + x)
    expected = wide if gate is None else torch.nn.functional.silu(wide[:, :10]) * wide[:, 10:]
    torch.testing.assert_close(out, expected)


@sizes
@given(
    rows=st.integers(0, 9),
    shape=st.sampled_from([(16, 6), (32, 1), (32, 3), (64, 2), (96, 1)]),
    outputs=st.integers(1, 70),
    table=st.sampled_from(sorted(TABLES)),
    stored=st.sampled_from([*DTYPES, torch.int8, torch.float8_e4m3fn, torch.float8_e8m0fnu]),
    activations=st.sampled_from(["int8", "none"]),
    seed=st.integers(0, 99),
)
def test_the_reference_of_a_table_is_the_product_in_float64(rows, shape, outputs, table, stored, activations, seed):
    (size, groups), unit = shape, None
    x, codes = random(rows, size * groups, seed=seed), random_codes(outputs, size * groups, bits=4, seed=seed)
    scale = (random(outputs, groups, seed=seed).exp() * 8).to(stored)
    meant = scale.double()
    if stored.itemsize == 1 and stored != torch.float8_e8m0fnu:
        unit = random(1, outputs, 1, seed=seed + 1).exp().to(torch.float16 if stored == torch.int8 else torch.float32)
        meant = meant * unit[0].double()
        unit = pack_scale(unit[0])[None]
    places = torch.tensor(TABLES[table], dtype=torch.float64)[codes.long()]
    exact, terms = exact_product(x, places, meant, torch.zeros(outputs, groups), None, 4, activations)
    out = linear_groups(x, pack(codes, 4), pack_scale(scale), None, None, 4, activations, unit, table)
    assert ((out.double() - exact).abs() <= 1e-5 * terms).all()


# ---- refusals ----

SOUND = {
    "x": torch.ones(2, 128),
    "packed": pack(random_codes(40, 128, bits=4), 4),
    "scale": torch.ones(40, 2),
    "offset": torch.ones(40, 2),
    "bias": None,
    "bits": 4,
    "activations": "int8",
}

LEVELS = {"scale": torch.ones(40, 2, dtype=torch.int8), "offset": torch.ones(40, 2, dtype=torch.int8)}
LEVELS["unit"] = torch.ones(2, 40, 1, dtype=torch.float16)
"""Scales and minima of integers."""
FLOATS = {"offset": None, "scale": torch.ones(40, 8).to(torch.float8_e4m3fn), "unit": torch.ones(1, 40, 1)}
FLOATS["table"] = "e2m1"
"""Floats of 4 bits."""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.ones(2, 160)}, "scale: 2 groups of 160 inputs are not of the same multiple of 32"),
        ({"x": torch.ones(2, 100)}, "x: inputs must be a multiple of 32, got 100"),
        ({"x": torch.ones(2, 64)}, "packed: expected shape"),
        ({"x": torch.ones(2, 128, dtype=torch.int32)}, "x: expected"),
        ({"x": torch.ones(128, 2).T}, "x: must be contiguous"),
        ({"packed": torch.zeros(3, 16, 16, 4)}, r"packed: expected torch\.uint8"),
        ({"bits": 8}, "packed: expected shape"),
        ({"bits": 3}, "bits: must be 4, 5, 6 or 8, got 3"),
        ({"unit": torch.ones(2, 40, 1).half()}, r"scale: expected torch\.int8"),
        ({**LEVELS, "offset": None}, "unit: expected shape"),
        ({**LEVELS, "offset": LEVELS["scale"].view(torch.uint8)}, r"offset: expected torch\.int8"),
        ({**LEVELS, "unit": torch.ones(2, 40, 1)}, r"unit: expected torch\.float16"),
        ({**LEVELS, "unit": torch.ones(2, 40, 3).half()}, "unit: 3 units are not of equally many of 2 groups"),
        ({"scale": LEVELS["scale"]}, "scale: expected"),
        ({"scale": torch.ones(50, 2)}, "packed: expected shape"),
        ({"scale": torch.ones(40, 0)}, "scale: 0 groups"),
        ({"scale": torch.ones(40, 3)}, "scale: 3 groups of 128 inputs are not of the same multiple of 32"),
        ({"scale": torch.ones(40, 2).double()}, "scale: expected"),
        ({"scale": torch.ones(2, 40).T}, "scale: must be contiguous"),
        ({"offset": torch.ones(40, 1)}, "offset: expected shape"),
        ({"offset": torch.ones(40, 2, dtype=torch.float16)}, "offset: expected"),
        ({"bias": torch.ones(39)}, "bias: expected shape"),
        ({"bias": torch.ones(40, dtype=torch.float16)}, "bias: expected"),
        ({"activations": "token"}, "activations: must be int8 or none, got 'token'"),
        ({"unit": None, "table": "nf4"}, "table: must be one of e2m1, iq4_nl, or empty, got 'nf4'"),
        ({"unit": None, "table": "e2m1"}, "offset: must be left out with a table"),
        ({"bits": 8, "offset": None, "unit": None, "table": "e2m1"}, "bits: must be 4 with a table, got 8"),
        ({**FLOATS, "table": ""}, r"scale: expected torch\.int8"),
        ({**FLOATS, "unit": None}, "scale: expected"),
        ({**FLOATS, "unit": torch.ones(1, 40, 1).half()}, r"unit: expected torch\.float32"),
        ({**FLOATS, "scale": torch.ones(40, 16).to(torch.float8_e4m3fn)}, "scale: 16 groups of 128 inputs"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, words):
    assert linear_groups(*SOUND.values()).isfinite().all()
    assert linear_groups(*(SOUND | LEVELS).values()).isfinite().all()
    assert linear_groups(*(SOUND | FLOATS).values()).isfinite().all()
    with pytest.raises(ValueError, match=words):
        linear_groups(*(SOUND | change).values())  # the unit and the table go last


def test_an_odd_number_of_outputs_cannot_be_gated():
    packed = pack(random_codes(33, 32, bits=8), 8)
    arguments = (packed, torch.ones(33, 1), None, None)
    with pytest.raises(ValueError, match="even number"):
        norm_linear_groups(torch.ones(2, 32), None, torch.ones(32), 1e-6, *arguments, "silu", 8, "int8")
