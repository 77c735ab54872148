"""Words of codes as GPUs read them: what is packed comes back, and the reference against a plain computation."""

import pytest
import torch

from quire.kernels.linear.code_tables import TABLES
from quire.kernels.linear.linear_group_words import (
    dequantize_words_reference,
    linear_group_words,
    norm_linear_group_words,
    pack_words,
    tile_inputs,
    unpack_words,
)
from quire.kernels.linear.linear_groups import linear_groups_reference, pack, pack_scale
from quire.kernels.linear.norm import rms_norm_reference

POWERS, E4M3 = torch.ones(4, 6).to(torch.float8_e8m0fnu), torch.ones(2, 6).to(torch.float8_e4m3fn)

LEVELS = {"x": torch.zeros(2, 256), "scale": torch.ones(4, 6, dtype=torch.int8), "unit": torch.ones(1, 1, 6).half()}


def drawn(bits, outputs, groups, size, offset):
    codes = torch.randint(1 << bits, (outputs, groups * size), dtype=torch.uint8)
    scale = torch.rand((outputs, groups)).half()
    zeros = torch.randint(1 << bits, scale.shape, dtype=torch.uint8)
    return codes, scale, {"none": None, "zeros": zeros, "minima": torch.randn(scale.shape).half()}[offset]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (17, 256), (5, 288), (4100, 64)])
def test_codes_come_back_and_lie_where_they_are_said_to(bits, outputs, inputs):
    codes = torch.randint(1 << bits, (outputs, inputs), dtype=torch.uint8)
    words, tile = pack_words(codes, bits), tile_inputs(bits)
    assert words.shape == (-(-inputs // tile), outputs, 32)
    assert torch.equal(unpack_words(words, bits, inputs), codes.int())
    for column in (0, 31, 32 % inputs, inputs - 1):
        word = words[column // tile, outputs - 1, column % 32].item() & 0xFFFFFFFF
        place = column % tile // 32
        assert word >> bits * place & (1 << bits) - 1 == codes[outputs - 1, column]
    assert int(unpack_words(words, bits, tile * words.shape[0])[:, inputs:].sum()) == 0


def test_codes_of_more_bits_and_odd_inputs_are_refused():
    with pytest.raises(ValueError, match="codes: must be at most 15, got 16"):
        pack_words(torch.full((2, 32), 16, dtype=torch.uint8), 4)
    with pytest.raises(ValueError, match="codes: inputs must be a multiple of 32, got 48"):
        pack_words(torch.zeros((2, 48), dtype=torch.uint8), 8)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offset", ["none", "zeros", "minima"])
@pytest.mark.parametrize(("groups", "size"), [(3, 32), (2, 128), (1, 96)])
def test_the_weight_is_that_of_the_codes_as_processors_read_them(bits, offset, groups, size):
    codes, scale, least = drawn(bits, 21, groups, size, offset)
    x, bias = torch.randn(4, codes.shape[1]), torch.randn(21)
    plain = linear_groups_reference(
        x, pack(codes, bits), pack_scale(scale), None if least is None else pack_scale(least), bias, bits, "none"
    )
    turned = None if least is None else least.T.contiguous()
    words = pack_words(codes, bits), scale.T.contiguous(), turned
    torch.testing.assert_close(linear_group_words(x, *words, bias, bits), plain, rtol=1e-5, atol=1e-4)
    weight = dequantize_words_reference(*words, bits, codes.shape[1], torch.bfloat16)
    exact = {
        "none": (codes.double().view(21, groups, -1) - (1 << bits - 1)) * scale.double()[..., None],
        "zeros": (codes.double().view(21, groups, -1) - (least if offset == "zeros" else scale)[..., None].double())
        * scale.double()[..., None],
        "minima": codes.double().view(21, groups, -1) * scale.double()[..., None]
        - (scale if least is None else least)[..., None].double(),
    }[offset]
    assert torch.equal(weight, exact.flatten(1).bfloat16())
    normed, total = norm_linear_group_words(x, x, torch.ones(x.shape[1]), 1e-5, *words, bias, None, bits)
    assert torch.equal(total, 2 * x)
    expected = linear_group_words(rms_norm_reference(2 * x, torch.ones(x.shape[1]), 1e-5), *words, bias, bits)
    torch.testing.assert_close(normed, expected)


@pytest.mark.parametrize(("groups", "size"), [(6, 16), (3, 32), (2, 128), (1, 96)])
@pytest.mark.parametrize("has_unit", [True, False])
def test_floats_are_those_that_processors_read_and_their_unit_multiplies_exactly(groups, size, has_unit):
    codes = torch.randint(16, (21, groups * size), dtype=torch.uint8)
    unit = torch.rand(21) + 0.5 if has_unit else None
    if has_unit:
        scale = torch.randint(0x7F, (21, groups), dtype=torch.uint8).view(torch.float8_e4m3fn)
    else:
        scale = torch.randint(120, 134, (21, groups), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    x, bias = torch.randn(4, codes.shape[1]), torch.randn(21)
    units = None if unit is None else unit.view(1, 21, 1)
    plain = linear_groups_reference(x, pack(codes, 4), pack_scale(scale), None, bias, 4, "none", units, "e2m1")
    words = pack_words(codes, 4), scale.T.contiguous(), None
    out = linear_group_words(x, *words, bias, 4, unit, "e2m1")
    atol = 1e-6 * float(plain.abs().max())  # terms are as large where their sum is small
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=atol)
    exact = torch.tensor(TABLES["e2m1"]).double()[codes.int()].view(21, groups, -1) * scale.double()[..., None]
    for dtype in (torch.bfloat16, torch.float16):  # no rounding: the unit is for the sums
        bare = dequantize_words_reference(*words, 4, codes.shape[1], dtype, table="e2m1")
        assert torch.equal(bare.double(), exact.flatten(1))
        whole = dequantize_words_reference(*words, 4, codes.shape[1], dtype, unit, "e2m1")
        meant = exact if unit is None else exact * unit.double()[:, None, None]
        assert torch.equal(whole, meant.flatten(1).float().to(dtype))
    normed, total = norm_linear_group_words(x, x, torch.ones(x.shape[1]), 1e-5, *words, bias, None, 4, unit, "e2m1")
    assert torch.equal(total, 2 * x)
    before = rms_norm_reference(2 * x, torch.ones(x.shape[1]), 1e-5)
    torch.testing.assert_close(normed, linear_group_words(before, *words, bias, 4, unit, "e2m1"))


@pytest.mark.parametrize(
    ("bits", "size", "table", "has_units"),
    [(4, 32, "", True), (8, 16, "", True), (8, 16, "", False), (4, 32, "iq4_nl", False), (4, 64, "iq4_nl", True)],
)
@pytest.mark.parametrize("offset", ["none", "minima"])
def test_superblocks_halves_and_levels_are_those_that_processors_read(bits, size, table, has_units, offset):
    """Codes of 6 bits, which processors have in groups of 16, are those of 8 that lie about the same middle."""
    groups, narrow = 512 // size, 6 if bits == 8 else bits
    codes = torch.randint(1 << narrow, (21, 512), dtype=torch.uint8)
    has_minima, count = offset == "minima" and not table, 1 if table or offset == "none" else 2
    if has_units:
        numbers = torch.randint(-128, 128, (count, 21, groups), dtype=torch.int8)
        units = torch.rand(count, 21, 2).half() / 64
        packed_units, unit = torch.stack([pack_scale(one) for one in units]), units.transpose(1, 2).contiguous()
    else:
        numbers, packed_units, unit = torch.randn(count, 21, groups).half(), None, None
    x, bias = torch.randn(4, 512), torch.randn(21)
    stored = pack(codes, narrow), pack_scale(numbers[0]), pack_scale(numbers[1]) if has_minima else None
    plain = linear_groups_reference(x, *stored, bias, narrow, "none", packed_units, table)
    wide = codes if has_minima else codes + ((1 << bits - 1) - (1 << narrow - 1))
    words = pack_words(wide, bits), numbers[0].T.contiguous(), numbers[1].T.contiguous() if has_minima else None
    out = linear_group_words(x, *words, bias, bits, unit, table)
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": 5}, "bits: must be 4 or 8, got 5"),
        ({"x": torch.zeros(2, 48)}, "scale: 2 groups of 48 inputs are not of 16, nor of the same"),
        ({"x": torch.zeros(2, 320)}, r"words: expected shape \[2, 6, 32\]|scale: 2 groups of 320"),
        ({"offset": torch.zeros(2, 6, dtype=torch.float32)}, "offset: expected torch.uint8 or torch.float16"),
        ({"scale": torch.zeros(6, 2).half().T}, "scale: must be contiguous"),
        ({"bias": torch.zeros(5)}, r"bias: expected shape \[6\]"),
        ({"table": "nf4"}, "table: must be one of e2m1, iq4_nl, or empty, got 'nf4'"),
        ({"table": "iq4_nl", "scale": POWERS[:2]}, "scale: expected torch.float16 or torch.bfloat16 or torch.float32"),
        ({"unit": torch.ones(6)}, "scale: expected torch.int8, got torch.float16"),
        ({**LEVELS, "unit": None}, "scale: expected torch.float16 or torch.bfloat16 or torch.float32, got torch.int8"),
        ({**LEVELS, "unit": torch.ones(2, 1, 6).half()}, r"unit: expected shape \[1, 1, 6\], got \[2, 1, 6\]"),
        ({**LEVELS, "unit": torch.ones(1, 1, 6)}, "unit: expected torch.float16, got torch.float32"),
        ({**LEVELS, "unit": torch.ones(1, 1, 12).half()[..., ::2]}, "unit: must be contiguous"),
        ({**LEVELS, "offset": torch.zeros(4, 6, dtype=torch.uint8)}, "offset: expected torch.int8, got torch.uint8"),
        ({**LEVELS, "x": torch.zeros(2, 128)}, "unit: 128 inputs in 4 groups are no superblocks of 256"),
        ({"table": "e2m1"}, "scale: expected torch.float8_e8m0fnu, got torch.float16"),
        ({"table": "e2m1", "unit": torch.ones(6)}, "scale: expected torch.float8_e4m3fn, got torch.float16"),
        ({"table": "e2m1", "bits": 8}, "bits: must be 4 with a table, got 8"),
        ({"table": "e2m1", "offset": torch.zeros(2, 6).half()}, "offset: must be left out with a table"),
        ({"table": "e2m1", "scale": POWERS[:3], "x": torch.zeros(2, 144)}, "3 groups of 144 inputs are not of 16, nor"),
        ({"table": "e2m1", "scale": POWERS, "x": torch.zeros(2, 192)}, "4 groups of 192 inputs are not of 16, nor of"),
        ({"table": "e2m1", "scale": E4M3, "unit": torch.ones(5)}, r"unit: expected shape \[6\], got \[5\]"),
        ({"table": "e2m1", "scale": E4M3, "unit": torch.ones(12)[::2]}, "unit: must be contiguous"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed, message):
    arguments = {
        "x": torch.zeros(2, 128),
        "words": torch.zeros((1, 6, 32), dtype=torch.int32),
        "scale": torch.zeros((2, 6), dtype=torch.float16),
        "offset": None,
        "bias": None,
        "bits": 4,
        "unit": None,
        "table": "",
        **changed,
    }
    with pytest.raises(ValueError, match=message):
        linear_group_words(*arguments.values())
