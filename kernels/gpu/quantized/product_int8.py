"""The product of 8-bit integers: the weight is read once for up to 64 tokens.

Floor of T tokens: O * I + T * I + T * O * (bytes of a result) bytes, 2 * T * O * I operations. Tiles and the split
along I are those of `product_f8`. Sums are 32-bit integers and exact, and all that follows is one function: a token's
result is the same to the bit whatever the tiles, the parts, or the product that made the sums.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.quantized.product_f8 import ADD_BLOCK, launch_options, tiles_for

OPERATION = "linear_int8"
"""Whose tiles the table has."""
SCALE_BLOCK = 1024
"""Columns of a program that scales the sums of many tokens, 8 for each thread."""


@triton.jit
def scaled(sums, scale, row_scale, bias):
    """Sums of integers as floats, each product rounded once; a bias is added without rounding in between."""
    wide = sums.to(tl.float32) * scale
    return wide * row_scale if bias is None else tl.fma(wide, row_scale, bias)


@triton.jit(do_not_specialize=["num_tokens", "steps"])
def product_int8_kernel(
    x,
    row_scale,
    weight,
    scale,
    bias,
    out,
    num_tokens,
    size_in,
    size_out,
    steps,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Program (column, part, stretch of tokens): BLOCK_O rows of weight times `steps` tiles of x, for TOKENS tokens.

    With SPLIT, `out` takes int32 sums [part, num_tokens, size_out], without scales.
    """
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    tokens = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    weight += tl.where(rows < size_out, rows, 0).to(tl.int64)[:, None] * size_in
    x += tokens.to(tl.int64)[:, None] * size_in
    real = (tokens < num_tokens)[:, None]
    lanes = tl.arange(0, BLOCK_I)[None, :]

    sums = tl.zeros((BLOCK_O, TOKENS), tl.int32)
    first = part * steps * BLOCK_I
    for start in range(first, min(first + steps * BLOCK_I, size_in), BLOCK_I):
        inner = start + lanes
        known = inner < size_in
        tile = tl.load(x + inner, real & known, 0)
        sums = tl.dot(tl.load(weight + inner, known, 0), tl.trans(tile), sums, out_dtype=tl.int32)

    sums = tl.trans(sums)
    columns = rows[None, :]
    inside = real & (columns < size_out)
    if SPLIT:
        place = (part * num_tokens + tokens).to(tl.int64)[:, None] * size_out + columns
        tl.store(out + place, sums, inside)
    else:
        offset = None
        if bias is not None:
            offset = tl.load(bias + rows, rows < size_out, 0.0)[None, :].to(tl.float32)
        of_token = tl.load(row_scale + tokens, tokens < num_tokens, 0.0)[:, None]
        result = scaled(sums, tl.load(scale + rows, rows < size_out, 0.0)[None, :], of_token, offset)
        place = tokens.to(tl.int64)[:, None] * size_out + columns
        tl.store(out + place, result.to(out.dtype.element_ty), inside)


# scales of a stretch of tokens begin anywhere
@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["row_scale"])
def scale_int8_sums_kernel(
    sums, row_scale, scale, bias, out, num_tokens, size_out, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (token, tile): adds the parts of a layer's sums and scales them. Floor: PARTS * T * O * 4 bytes."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size_out
    total = tl.zeros((BLOCK,), tl.int32)
    for part in tl.static_range(PARTS):
        total += tl.load(sums + (part * num_tokens + token) * size_out + columns, inside, 0)
    offset = None
    if bias is not None:
        offset = tl.load(bias + columns, inside, 0.0).to(tl.float32)
    result = scaled(total, tl.load(scale + columns, inside, 0.0), tl.load(row_scale + token), offset)
    tl.store(out + token * size_out + columns, result.to(out.dtype.element_ty), inside)


def product_int8(
    x: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x int8 [T, I] with scales [T] times weight int8 [O, I] with scales [O], in `dtype`: [T, O]."""
    (num_tokens, size_in), size_out = x.shape, weight.shape[0]
    out = x.new_empty((num_tokens, size_out), dtype=dtype)
    if not out.numel():
        return out
    tiles = tiles_for(num_tokens, size_in, size_out, x.dtype, OPERATION)
    parts, is_split = tiles["parts"], tiles["parts"] > 1
    sums = x.new_empty((parts, num_tokens, size_out), dtype=torch.int32) if is_split else out
    grid = (triton.cdiv(size_out, tiles["block_o"]), parts, triton.cdiv(num_tokens, tiles["tokens"]))
    product_int8_kernel[grid](
        x,
        row_scale,
        weight,
        scale,
        None if is_split else bias,
        sums,
        num_tokens,
        size_in,
        size_out,
        triton.cdiv(triton.cdiv(size_in, tiles["block_i"]), parts),
        SPLIT=is_split,
        **launch_options(tiles),
    )
    if is_split:
        scale_int8_sums(sums, row_scale, scale, bias, out, ADD_BLOCK)
    return out


def scale_int8_sums(
    sums: torch.Tensor,
    row_scale: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    block: int,
) -> None:
    """Fill `out` [T, O] with what sums int32 [parts, T, O] come to, `block` columns in a program."""
    parts, num_tokens, size_out = sums.shape
    scale_int8_sums_kernel[(num_tokens, triton.cdiv(size_out, block))](
        sums, row_scale, scale, bias, out, num_tokens, size_out, PARTS=parts, BLOCK=block, num_warps=4
    )
