"""Rows looked up in words of codes, in the interpreter: those of the reference to the bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.quantized.embed_group_words import embed_group_words
from quire.kernels.linear.embed_group_words import embed_group_words as operation
from quire.kernels.linear.embed_group_words import embed_group_words_reference
from quire.kernels.linear.linear_group_words import pack_words

pytestmark = pytest.mark.usefixtures("poisoned_results")
KINDS = ("none", "minima", "zeros", "powers", "e4m3", "levels", "superblocks", "of minima")
"""What is beside scales of floats; scales of a byte beside floats of 4 bits; ggml's levels; int8 scales, and minima."""


def stored(kind, bits, rows, hidden, size, seed=0):
    """(words, scale, offset) and (bits, unit, table)."""
    generator, groups = torch.Generator().manual_seed(seed), hidden // size
    words = pack_words(torch.randint(1 << bits, (rows, hidden), generator=generator, dtype=torch.uint8), bits)
    scale, offset = torch.randn((groups, rows), generator=generator).half() / 16, None
    if kind == "minima":
        offset = torch.randn((groups, rows), generator=generator).half()
    elif kind == "zeros":
        offset = torch.randint(1 << bits, (groups, rows), generator=generator, dtype=torch.uint8)
    elif kind in ("powers", "e4m3"):
        byte = torch.randint(60, 126, (groups, rows), generator=generator, dtype=torch.uint8)
        if kind == "powers":
            return (words, byte.view(torch.float8_e8m0fnu), None), (bits, None, "e2m1")
        unit = torch.exp2(torch.randint(-9, -4, (rows,), generator=generator).float())  # rounds nothing before the end
        return (words, byte.view(torch.float8_e4m3fn), None), (bits, unit, "e2m1")
    elif kind == "levels":
        return (words, scale, None), (4, None, "iq4_nl")
    elif kind in ("superblocks", "of minima"):
        count = 1 if kind == "superblocks" else 2
        small = torch.randint(-128, 128, (count, groups, rows), generator=generator, dtype=torch.int8)
        unit = torch.randn((count, hidden // 256, rows), generator=generator).half() / 64
        return (words, small[0], small[1] if count == 2 else None), (bits, unit, "")
    return (words, scale, offset), (bits, None, "")


def same(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@settings(max_examples=15)
@given(
    kind=st.sampled_from(KINDS),
    bits=st.sampled_from([4, 8]),
    shape=st.sampled_from([(32, 32), (96, 32), (288, 96), (512, 64), (256, 256), (640, 320)]),
    tokens=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_rows_of_the_share_are_those_of_the_reference_and_others_zero(kind, bits, shape, tokens, dtype, seed):
    (hidden, size), rows = shape, 21
    bits = 4 if kind in ("powers", "e4m3", "levels") else bits
    if kind in ("superblocks", "of minima"):
        hidden, size = 512, min(size, 64)
    weight, (bits, unit, table) = stored(kind, bits, rows, hidden, 16 if kind == "e4m3" else size, seed)
    ids = torch.randint(95, 125, (tokens,), generator=torch.Generator().manual_seed(seed))
    given = (*weight, 100, 19, hidden, bits, dtype, unit, table)
    made = embed_group_words(ids, *given)
    assert same(made, embed_group_words_reference(ids, *given))
    assert not made[(ids < 100) | (ids >= 119)].any()


def test_ids_far_away_are_no_rows_and_a_code_for_a_zero_has_no_sign():
    words = pack_words(torch.full((2, 32), 8, dtype=torch.uint8), 4)
    scale = torch.full((1, 2), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    ids = torch.tensor([2**62, -1, 1])
    made = embed_group_words(ids, words, scale, None, 0, 2, 32, 4, torch.float32, None, "e2m1")
    assert same(made, torch.zeros((3, 32)))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"token_ids": torch.zeros(2)}, "token_ids"),
        ({"count": 22}, "count"),
        ({"first": -1}, "count"),
        ({"hidden": 64}, "scale"),
        ({"dtype": torch.int8}, "dtype"),
        ({"table": "e4m3"}, "table"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(changed, named):
    words, scale, offset = stored("none", 8, 21, 256, 32)[0]
    given = {
        "token_ids": torch.zeros(2, dtype=torch.int64), "words": words, "scale": scale, "offset": offset,
        "first": 0, "count": 21, "hidden": 256, "bits": 8, "dtype": torch.float32,
        "unit": None, "table": "",
    }  # fmt: skip
    assert operation(*given.values()).shape == (2, 256)
    with pytest.raises(ValueError, match=f"^{named}:"):
        operation(*(given | changed).values())
