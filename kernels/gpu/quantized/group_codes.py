"""Weights in registers, out of words of codes and the scales of their groups: by bits and float32, nothing looked up.

Beside floats (e2m1) scales are a byte: e4m3 where there is a unit, else powers of two (e8m0). The bits of a small
float, put where a float32 has its sign, the end of its exponent and the beginning of its mantissa, are its number
times a power of two, also of those below its own smallest power: one product makes the number of them, exactly.
Products of an e2m1 and an e4m3 number have 6 bits and need no rounding in 16, so the unit is left for the sums.

Scales of int8 are multiples of a float16 that the groups of a superblock share: a product of the two has 18 bits, and
one with a code of 6 bits too is a float32 without rounding. The numbers of the table iq4_nl are the bytes of two
constants of 64 bits, which a code shifts.
"""

import triton
import triton.language as tl

from quire.kernels.linear.code_tables import TABLES
from quire.kernels.linear.linear_group_words import SUPERBLOCK, WORDS


def _eight_bytes(numbers: tuple[float, ...]) -> tl.constexpr:
    """128 more than eight whole numbers, each a byte of 64 bits, the first one's the lowest."""
    return tl.constexpr(int.from_bytes(bytes(int(number) + 128 for number in numbers), "little", signed=True))


_WORDS, _SUPERBLOCK = tl.constexpr(WORDS), tl.constexpr(SUPERBLOCK)
_LOW_LEVELS, _HIGH_LEVELS = _eight_bytes(TABLES["iq4_nl"][:8]), _eight_bytes(TABLES["iq4_nl"][8:])
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
def superblock_units(unit, offset, tile, rows, size_in, size_out, BITS: tl.constexpr):
    """Numbers [O] that int8 scales and minima of the rows are multiples of in a tile; 1 for other scales."""
    of_scale, of_offset = 1.0, 1.0
    if unit is not None and unit.dtype.element_ty == tl.float16:
        place = tile * (32 // BITS * _WORDS) // _SUPERBLOCK * size_out + rows
        of_scale = tl.load(unit + place).to(tl.float32)
        of_offset = of_scale
        if offset is not None:
            of_offset = tl.load(unit + size_in // _SUPERBLOCK * size_out + place).to(tl.float32)
    return of_scale, of_offset


@triton.jit
def slice_numbers(
    scale,
    offset,
    unit,
    of_scale,
    of_offset,
    group,
    rows,
    size_out,
    known,
    BITS: tl.constexpr,
    PER: tl.constexpr,
    TABLE: tl.constexpr,
):
    """Factor and what is taken off [O, 1] of the rows' weights in a slice; with PER 2 [O, 32], of a group and the next.

    `of_scale` and `of_offset` are of `superblock_units`. Loads of fewer elements than threads are made where they are
    used; more go there by way of shared memory.
    """
    places = group * size_out + rows
    if PER == 2:
        places = places[:, None] + tl.arange(0, PER)[None, :] * size_out
        if scale.dtype.element_ty == tl.int8:
            of_scale, of_offset = of_scale[:, None], of_offset[:, None]
        wide, least = _group_numbers(scale, offset, unit, of_scale, of_offset, places, known, BITS, TABLE)
        wide, least = _of_slice(wide, PER), _of_slice(least, PER)
    else:
        wide, least = _group_numbers(scale, offset, unit, of_scale, of_offset, places, known, BITS, TABLE)
        wide, least = wide[:, None], least[:, None]
    return wide, least


@triton.jit
def _of_slice(numbers, PER: tl.constexpr):
    """Numbers of groups [O, PER] for each input of a slice: [O, 32]."""
    rows: tl.constexpr = numbers.shape[0]
    return tl.broadcast_to(numbers[:, :, None], (rows, PER, _WORDS // PER)).reshape((rows, _WORDS))


@triton.jit
def _group_numbers(scale, offset, unit, of_scale, of_offset, place, known, BITS: tl.constexpr, TABLE: tl.constexpr):
    """Scale, and what is taken off a code's float (above `_BASE`) or, of minima, off the product; 0 where not known."""
    if TABLE == "e2m1":
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
        wide = tl.load(scale + place, known, 0).to(tl.float32)
        if scale.dtype.element_ty == tl.int8:
            wide *= of_scale
        if offset is None:
            least = tl.full(wide.shape, _BASE + (1 << (7 if TABLE == "iq4_nl" else BITS - 1)), tl.float32)
        else:
            least = tl.load(offset + place, known, 0).to(tl.float32)
            if offset.dtype.element_ty == tl.uint8:
                least += _BASE
            elif offset.dtype.element_ty == tl.int8:
                least *= of_offset
    return wide, least


@triton.jit
def dequantized(words, place: tl.constexpr, wide, least, offset, unit, BITS: tl.constexpr, TABLE: tl.constexpr):
    """The weights of the codes at a place of the words, float32, exact up to the rounding of one operation; with a
    unit of e4m3 scales, exact and over `_LESS`."""
    if TABLE == "e2m1":
        bits = (words << 28 - BITS * place) >> 6 & _E2M1  # the sign fills what lies between
        weight = bits.to(tl.float32, bitcast=True)
        if unit is None:
            weight *= _OF_E2M1
        weight *= wide
    else:
        codes = (words >> place * BITS) & ((1 << BITS) - 1)
        if TABLE == "iq4_nl":
            levels = tl.where(codes < 8, _LOW_LEVELS, _HIGH_LEVELS)
            codes = (levels >> ((codes & 7) * 8)).to(tl.int32) & 0xFF
        value = (codes | _EXPONENT).to(tl.float32, bitcast=True)
        if offset is None or offset.dtype.element_ty == tl.uint8:
            weight = (value - least) * wide
        else:
            weight = (value - _BASE) * wide - least
    return weight


@triton.jit
def of_unit(numbers, unit, rows):
    """Sums or weights of e4m3 scales, which are multiples of a unit for each of the rows; others as they are."""
    if unit is not None and unit.dtype.element_ty == tl.float32:
        numbers = numbers * _LESS * tl.load(unit + rows)
    return numbers
