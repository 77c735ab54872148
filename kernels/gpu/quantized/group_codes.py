"""Weights in registers, out of words of codes and the scales of their groups: by bits and float32, without a table.

Scales of a byte say that codes are floats (e2m1): e4m3 where there is a unit, else powers of two (e8m0). The bits of a
small float, put where a float32 has its sign, the end of its exponent and the beginning of its mantissa, are its number
times a power of two, also of those below its own smallest power: one product makes the number of them, exactly.
Products of an e2m1 and an e4m3 number have 6 bits and need no rounding in 16, so the unit is left for the sums.
"""

import triton
import triton.language as tl

from quire.kernels.linear.linear_group_words import WORDS

_WORDS = tl.constexpr(WORDS)
_EXPONENT = tl.constexpr(0x4B000000)
"""Bits of 2 ** 23 as a float32: a code in the low bits adds itself, without an instruction that converts."""
_BASE = tl.constexpr(8388608.0)
_E2M1 = tl.constexpr(0x81C00000 - (1 << 32))
"""Sign, two bits of exponent and one of mantissa in a float32; below, those of an e4m3 number."""
_E4M3 = tl.constexpr(0x87F00000 - (1 << 32))
_OF_E2M1 = tl.constexpr(2.0**126)
"""Number of an e2m1 float over that of its bits in a float32: by the difference of their exponents' middles."""
_LESS = tl.constexpr(2.0**8)
"""Weights of e4m3 scales are as much smaller, until the unit multiplies: their scale takes in `_OF_E2M1`, which leaves
room for 2 ** 127 / 448; in a float16 they keep all their bits."""
_MOST_E4M3 = tl.constexpr(448 * 2.0**-120)
"""The largest e4m3 number, as its bits are in a float32; what is above stands for no number."""
_HALF_OF_E4M3 = tl.constexpr(2.0**119)
"""Root of 2 ** 120 (as `_OF_E2M1`, of e4m3) * _OF_E2M1 / _LESS, which is no float32."""
_LEAST_POWER = tl.constexpr(0x00400000)
"""Bits of 2 ** -127: the one power of e8m0 that is no normal float32."""


@triton.jit
def slice_numbers(scale, offset, unit, group, rows, size_out, known, BITS: tl.constexpr, PER: tl.constexpr):
    """Factor and what is taken off [O, 1] of the rows' weights in a slice; with PER 2 [O, 32], of a group and the next.

    Loads of fewer elements than threads are made where they are used; more go there by way of shared memory.
    """
    places = group * size_out + rows
    if PER == 2:
        places = places[:, None] + tl.arange(0, PER)[None, :] * size_out
        wide, least = _group_numbers(scale, offset, unit, places, known, BITS)
        wide = tl.broadcast_to(wide[:, :, None], (rows.shape[0], PER, _WORDS // PER)).reshape((rows.shape[0], _WORDS))
    else:
        wide, least = _group_numbers(scale, offset, unit, places, known, BITS)
        wide, least = wide[:, None], least[:, None]
    return wide, least


@triton.jit
def _group_numbers(scale, offset, unit, place, known, BITS: tl.constexpr):
    """Scale, and what is taken off a code's float (above `_BASE`) or, of minima, off the product; 0 where not known."""
    if scale.dtype.element_ty == tl.uint8:
        bits = tl.load(scale + place, known, 0).to(tl.int32)
        if unit is None:
            power = tl.maximum(bits << 23, _LEAST_POWER).to(tl.float32, bitcast=True)
            wide = tl.where(bits == 0xFF, float("nan"), power)
        else:
            bits = (bits << 24) >> 4 & _E4M3  # the sign fills what lies between
            small = bits.to(tl.float32, bitcast=True)
            wide = tl.where(tl.abs(small) > _MOST_E4M3, float("nan"), small * _HALF_OF_E4M3) * _HALF_OF_E4M3
        least = wide
    else:
        wide = tl.load(scale + place, known, 0.0).to(tl.float32)
        if offset is None:
            least = tl.full(wide.shape, _BASE + (1 << BITS - 1), tl.float32)
        else:
            least = tl.load(offset + place, known, 0).to(tl.float32)
            if offset.dtype.element_ty == tl.uint8:
                least += _BASE
    return wide, least


@triton.jit
def dequantized(words, place: tl.constexpr, wide, least, scale, offset, unit, BITS: tl.constexpr):
    """The weights of the codes at a place of the words, float32, exact up to the rounding of one operation; with a
    unit, exact and over `_LESS`."""
    if scale.dtype.element_ty == tl.uint8:
        bits = (words << 28 - BITS * place) >> 6 & _E2M1  # the sign fills what lies between
        weight = bits.to(tl.float32, bitcast=True)
        if unit is None:
            weight *= _OF_E2M1
        weight *= wide
    else:
        codes = (words >> place * BITS) & ((1 << BITS) - 1)
        value = (codes | _EXPONENT).to(tl.float32, bitcast=True)
        if offset is None or offset.dtype.element_ty == tl.uint8:
            weight = (value - least) * wide
        else:
            weight = (value - _BASE) * wide - least
    return weight


@triton.jit
def of_unit(numbers, unit, rows):
    """Sums or weights of scales that are multiples of a unit for each of the rows; without one, as they are."""
    if unit is not None:
        numbers = numbers * _LESS * tl.load(unit + rows)
    return numbers
