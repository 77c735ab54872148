"""Words of codes as GPUs read them: what is packed comes back, and the reference against a plain computation."""

import pytest
import torch

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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": 5}, "bits: must be 4 or 8, got 5"),
        ({"x": torch.zeros(2, 48)}, "scale: 2 groups of 48 inputs are not of the same multiple of 32"),
        ({"x": torch.zeros(2, 320)}, r"words: expected shape \[2, 6, 32\]|scale: 2 groups of 320"),
        ({"offset": torch.zeros(2, 6, dtype=torch.float32)}, "offset: expected torch.uint8 or torch.float16"),
        ({"scale": torch.zeros(6, 2).half().T}, "scale: must be contiguous"),
        ({"bias": torch.zeros(5)}, r"bias: expected shape \[6\]"),
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
        **changed,
    }
    with pytest.raises(ValueError, match=message):
        linear_group_words(*arguments.values())
