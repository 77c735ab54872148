"""The product with weights of 8-bit floats in blocks: the weight's codes are read once for up to 64 tokens.

Floor of T tokens: O * I + T * I * (bytes of an element) + T * O * (bytes of a result) bytes, 2 * T * O * I operations;
scales are some thousandths of that. Tiles and the split along I are those of `product_f8`. Sums leave the matrix
instruction every 128 inputs at most, are scaled and added in float32.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.quantized.product_f8 import (
    ADD_BLOCK,
    add_f8_parts_kernel,
    launch_options,
    readable,
    tiles_for,
    widened,
)
from quire.kernels.linear.linear_f8_blocks import SIDE

OPERATION = "linear_f8_blocks"
"""Whose tiles the table has."""
FEW = 64
"""Tokens of a program that are columns of the matrix instruction. More are its rows where they have scales, of which a
thread then holds a few and not one for each column."""
_FEW = tl.constexpr(FEW)


@triton.jit
def block_factor(row_scale, scale, tokens, real, rows, start, SIDE: tl.constexpr):
    """Scale of the sums of the tile that begins at an input, for each token where x is codes: [1, TOKENS]."""
    block = start // SIDE
    factor = tl.load(scale + block)
    if row_scale is not None:
        factor *= tl.load(row_scale + block.to(tl.int64) * rows + tokens, real, 0.0)[None, :]
    return factor


@triton.jit
def block_sums(TOKENS: tl.constexpr, BLOCK_O: tl.constexpr, ROUNDED: tl.constexpr):
    """Zeros, [BLOCK_O, TOKENS], or its transpose where `add_f8_block` has tokens as rows."""
    if ROUNDED and TOKENS > _FEW:
        return tl.zeros((TOKENS, BLOCK_O), tl.float32)
    else:  # the compiler reads on behind a return, and wants one type of result
        return tl.zeros((BLOCK_O, TOKENS), tl.float32)


@triton.jit
def add_f8_block(sums, codes, tile, factor, ROUNDED: tl.constexpr, TOKENS: tl.constexpr, BLOCK_I: tl.constexpr):
    """sums + codes @ tile.T * factor of BLOCK_I inputs of one block. ROUNDED: the tile is codes too."""
    if ROUNDED and TOKENS > _FEW:
        return sums + tl.dot(tile, tl.trans(codes), max_num_imprecise_acc=BLOCK_I) * tl.trans(factor)
    elif ROUNDED:
        return sums + tl.dot(codes, tl.trans(tile), max_num_imprecise_acc=BLOCK_I) * factor
    else:
        return sums + tl.dot(widened(codes, tile.dtype), tl.trans(tile), input_precision="ieee") * factor


@triton.jit
def as_rows(sums, ROUNDED: tl.constexpr, TOKENS: tl.constexpr):
    """The sums of `add_f8_block`, [TOKENS, BLOCK_O]."""
    if ROUNDED and TOKENS > _FEW:
        return sums
    else:
        return tl.trans(sums)


@triton.jit(do_not_specialize=["num_tokens", "rows", "steps"])
def product_f8_blocks_kernel(
    x,
    row_scale,
    weight,
    scale,
    bias,
    out,
    num_tokens,
    rows,
    size_in,
    size_out,
    steps,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Program (column, part, stretch of tokens): BLOCK_O rows of weight times `steps` tiles of x, for TOKENS tokens.

    Tiles do not reach over the edge of a block. x is codes with a `row_scale` [ceil(I / SIDE), rows], or without one
    numbers as they are. With SPLIT, `out` takes float32 sums [part, num_tokens, size_out].
    """
    part = tl.program_id(1)
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    tokens = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    weight += tl.where(outputs < size_out, outputs, 0).to(tl.int64)[:, None] * size_in
    scale += tl.program_id(0) * BLOCK_O // SIDE * tl.cdiv(size_in, SIDE)
    x += tokens.to(tl.int64)[:, None] * size_in
    real = (tokens < num_tokens)[:, None]
    lanes = tl.arange(0, BLOCK_I)[None, :]

    ROUNDED: tl.constexpr = row_scale is not None
    sums = block_sums(TOKENS, BLOCK_O, ROUNDED)
    first = part * steps * BLOCK_I
    end = min(first + steps * BLOCK_I, size_in)
    is_token = tokens < num_tokens
    factor = block_factor(row_scale, scale, tokens, is_token, rows, min(first, size_in - 1), SIDE)
    for start in range(first, end, BLOCK_I):
        inner = start + lanes
        known = inner < size_in
        codes = tl.load(weight + inner, known, 0.0)
        tile = tl.load(x + inner, real & known, 0.0)
        # a tile ahead, so that no sum waits for its scale; behind the last tile there is none to need it
        ahead = block_factor(row_scale, scale, tokens, is_token, rows, min(start + BLOCK_I, size_in - 1), SIDE)
        sums = add_f8_block(sums, codes, tile, factor, ROUNDED, TOKENS, BLOCK_I)
        factor = ahead

    sums = as_rows(sums, ROUNDED, TOKENS)
    columns = outputs[None, :]
    inside = real & (columns < size_out)
    if SPLIT:
        place = (part * num_tokens + tokens).to(tl.int64)[:, None] * size_out + columns
        tl.store(out + place, sums, inside)
    else:
        if bias is not None:
            sums += tl.load(bias + outputs, outputs < size_out, 0.0)[None, :].to(tl.float32)
        place = tokens.to(tl.int64)[:, None] * size_out + columns
        tl.store(out + place, sums.to(out.dtype.element_ty), inside)


def product_f8_blocks(
    x: torch.Tensor,
    row_scale: torch.Tensor | None,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x [T, I] times codes [O, I] and the scales of their blocks [ceil(O / 128), ceil(I / 128)], in `dtype`: [T, O].

    x is codes with `row_scale` [ceil(I / 128), R], R at least T, or without that floats of `dtype`, which are
    multiplied as they are.
    """
    (num_tokens, size_in), size_out = x.shape, weight.shape[0]
    out = x.new_empty((num_tokens, size_out), dtype=dtype)
    if not out.numel():
        return out
    tiles = tiles_for(num_tokens, size_in, size_out, x.dtype, OPERATION)
    parts, is_split = tiles["parts"], tiles["parts"] > 1
    sums = x.new_empty((parts, num_tokens, size_out), dtype=torch.float32) if is_split else out
    grid = (triton.cdiv(size_out, tiles["block_o"]), parts, triton.cdiv(num_tokens, tiles["tokens"]))
    product_f8_blocks_kernel[grid](
        x,
        row_scale,
        readable(weight),
        scale,
        None if is_split else bias,
        sums,
        num_tokens,
        num_tokens if row_scale is None else row_scale.shape[1],
        size_in,
        size_out,
        triton.cdiv(triton.cdiv(size_in, tiles["block_i"]), parts),
        SPLIT=is_split,
        SIDE=SIDE,
        **launch_options(tiles),
    )
    if is_split:
        add_f8_parts_kernel[(num_tokens, triton.cdiv(size_out, ADD_BLOCK))](
            sums, None, None, bias, out, num_tokens, size_out, PARTS=parts, BLOCK=ADD_BLOCK, num_warps=4
        )
    return out
