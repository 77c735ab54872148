"""Sums over words of codes: what the products of layers and of experts have in common."""

import triton
import triton.language as tl

from quire.kernels.gpu.quantized.group_codes import dequantized, of_unit, slice_numbers, superblock_units
from quire.kernels.linear.linear_group_words import WORDS

_WORDS = tl.constexpr(WORDS)


@triton.jit
def word_sums(
    x,
    real,
    words,
    scale,
    offset,
    unit,
    rows,
    first,
    end,
    size_in,
    size_out,
    group_size,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    RUN: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_O: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """float32 [BLOCK_O, TOKENS]: the outputs `rows` [BLOCK_O] of the tokens that x points to, by the tiles of words
    first..end - 1.

    x, real: where the rows of the tokens begin, and which are read, [1, TOKENS]. group_size, RUN and PER: see
    `slices_of`.
    """
    SLICES: tl.constexpr = 32 // BITS
    lanes = tl.arange(0, _WORDS)
    sums = tl.zeros((BLOCK_O, TOKENS), tl.float32)
    for tile in range(first, end):
        packed = tl.load(words + (tile * size_out + rows[:, None]) * _WORDS + lanes[None, :])
        of_scale, of_offset = superblock_units(unit, offset, tile, rows, size_in, size_out, BITS)
        for place in tl.static_range(SLICES):
            inner = tile * (SLICES * _WORDS) + place * _WORDS
            known = inner < size_in
            if place % RUN == 0:
                group = (tile * SLICES + place) * PER // RUN if group_size is None else inner // group_size
                wide, least = slice_numbers(
                    scale, offset, unit, of_scale, of_offset, group, rows, size_out, known, BITS, PER, TABLE
                )
            weight = dequantized(packed, place, wide, least, offset, unit, BITS, TABLE).to(x.dtype.element_ty)
            slice_of_x = tl.load(x + inner + lanes[:, None], real & known, 0.0)
            sums = tl.dot(weight, slice_of_x, sums, input_precision="ieee")
    return of_unit(sums, unit, rows[:, None])
