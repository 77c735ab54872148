"""The product with weights of 8-bit floats: the weight's codes are read once for up to 64 tokens.

Floor of T tokens: O * I + T * I * (bytes of an element) + T * O * (bytes of a result) bytes, 2 * T * O * I operations.
The weight's rows are the rows of the matrix instruction, tokens its columns: few tokens leave no row of it idle. Sums
leave the instruction every 128 inputs and are added in float32, since Hopper's unit for 8-bit floats keeps fewer bits.
A layer with few outputs is split along I: a second launch adds the parts in their order. The split hangs on the layer
alone, so a token's sums are those it has without the others.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.chip import chip_of, has_eight_bits
from quire.kernels.gpu.tile_table import Tiles, tile

OPERATION = "linear_f8"
"""Whose tiles the table has."""
TOKENS = 16
"""Columns of the narrowest matrix instruction that codes take, and tokens that tiles are measured of."""
ADD_BLOCK = 256
"""Columns of a program that adds the parts of a split layer."""
PROMOTED = 128
"""Inputs whose products are summed before the sum is added in float32."""
PROGRAMS = 256
"""Programs that a layer is split for: about two for each multiprocessor."""
ALIGNED = 16
"""Inputs of which a row of codes begins where a wide copy can."""
LEAST_STEPS = 4
"""Tiles of a part of a split layer."""


@triton.jit
def widened(codes, kind: tl.constexpr):
    """Numbers of type `kind` that codes stand for, exactly.

    Chips without 8-bit floats take codes as bytes: shifted by 7 a code is a float16 of 1/256 of its value.
    """
    if codes.dtype == tl.uint8:
        bits = codes.to(tl.uint16)
        shifted = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        half = shifted.to(tl.float16, bitcast=True)
        wide = half.to(tl.float32) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), wide).to(kind)
    return codes.to(tl.float32).to(kind)


@triton.jit
def add_f8(sums, codes, tile, ROUNDED: tl.constexpr, BLOCK_I: tl.constexpr):
    """sums + codes @ tile.T, [BLOCK_O, TOKENS], of BLOCK_I inputs. ROUNDED: the tile is codes too."""
    if ROUNDED:
        return sums + tl.dot(codes, tl.trans(tile), max_num_imprecise_acc=BLOCK_I)
    else:  # the compiler reads on behind a return, and wants one type of result
        return tl.dot(widened(codes, tile.dtype), tl.trans(tile), sums, input_precision="ieee")


@triton.jit(do_not_specialize=["num_tokens", "steps"])
def product_f8_kernel(
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

    x is codes with a `row_scale` each, or without one numbers as they are. With SPLIT, `out` takes float32 sums
    [part, num_tokens, size_out], without scales.
    """
    part = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    tokens = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    weight += tl.where(rows < size_out, rows, 0).to(tl.int64)[:, None] * size_in
    x += tokens.to(tl.int64)[:, None] * size_in
    real = (tokens < num_tokens)[:, None]
    lanes = tl.arange(0, BLOCK_I)[None, :]

    sums = tl.zeros((BLOCK_O, TOKENS), tl.float32)
    first = part * steps * BLOCK_I
    for start in range(first, min(first + steps * BLOCK_I, size_in), BLOCK_I):
        inner = start + lanes
        known = inner < size_in
        codes = tl.load(weight + inner, known, 0.0)
        tile = tl.load(x + inner, real & known, 0.0)
        sums = add_f8(sums, codes, tile, row_scale is not None, BLOCK_I)

    sums = tl.trans(sums)
    columns = rows[None, :]
    inside = real & (columns < size_out)
    if SPLIT:
        place = (part * num_tokens + tokens).to(tl.int64)[:, None] * size_out + columns
        tl.store(out + place, sums, inside)
    else:
        sums *= tl.load(scale + rows, rows < size_out, 0.0)[None, :]
        if row_scale is not None:
            sums *= tl.load(row_scale + tokens, tokens < num_tokens, 0.0)[:, None]
        if bias is not None:
            sums += tl.load(bias + rows, rows < size_out, 0.0)[None, :].to(tl.float32)
        place = tokens.to(tl.int64)[:, None] * size_out + columns
        tl.store(out + place, sums.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["num_tokens"])
def add_f8_parts_kernel(
    sums, row_scale, scale, bias, out, num_tokens, size_out, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (token, tile): adds the parts of a split layer in their order, and scales the sum if that is left to do.

    Floor: PARTS * T * O * 4 bytes.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size_out
    result = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        result += tl.load(sums + (part * num_tokens + token) * size_out + columns, inside, 0.0)
    if scale is not None:
        result *= tl.load(scale + columns, inside, 0.0)
    if row_scale is not None:
        result *= tl.load(row_scale + token)
    if bias is not None:
        result += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    tl.store(out + token * size_out + columns, result.to(out.dtype.element_ty), inside)


def product_f8(
    x: torch.Tensor,
    row_scale: torch.Tensor | None,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x [T, I] times codes [O, I] and their scales [O], in `dtype`: [T, O].

    x is codes with `row_scale` [T], or without that floats of `dtype`, which are multiplied as they are.
    """
    (num_tokens, size_in), size_out = x.shape, weight.shape[0]
    out = x.new_empty((num_tokens, size_out), dtype=dtype)
    if not out.numel():
        return out
    tiles = tiles_for(num_tokens, size_in, size_out, x.dtype)
    parts, is_split = tiles["parts"], tiles["parts"] > 1
    sums = x.new_empty((parts, num_tokens, size_out), dtype=torch.float32) if is_split else out
    grid = (triton.cdiv(size_out, tiles["block_o"]), parts, triton.cdiv(num_tokens, tiles["tokens"]))
    product_f8_kernel[grid](
        x,
        row_scale,
        readable(weight),
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
        add_f8_parts_kernel[(num_tokens, triton.cdiv(size_out, ADD_BLOCK))](
            sums, row_scale, scale, bias, out, num_tokens, size_out, PARTS=parts, BLOCK=ADD_BLOCK, num_warps=4
        )
    return out


def readable(codes: torch.Tensor) -> torch.Tensor:
    """Codes e4m3 as their chip reads them: bytes where it has no 8-bit floats."""
    return codes if has_eight_bits(chip_of(codes.device).capability) else codes.view(torch.uint8)


def tiles_for(num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype, operation: str = OPERATION) -> Tiles:
    """The tiles of a layer whose x has this type, of the operation of this name in the table.

    The table has what was measured of 16 tokens; more, up to 64, take its parts: a token's sums are those of it alone.
    """
    default = default_tiles(num_tokens, size_in, size_out, dtype)
    if num_tokens > 64:
        return default
    few = default_tiles(TOKENS, size_in, size_out, dtype)
    few = tile(operation, f8_shape_key(size_in, size_out, dtype), few)
    return few if num_tokens <= TOKENS else {**default, "parts": few["parts"]}


def f8_shape_key(size_in: int, size_out: int, dtype: torch.dtype) -> str:
    """`4096 -> 6144 float8_e4m3fn`: of a layer whose x has this type."""
    return f"{size_in} -> {size_out} {str(dtype).removeprefix('torch.')}"


def default_tiles(num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype) -> Tiles:
    """Tiles without a table: of few tokens, some 32 KB of codes under way for each program."""
    if dtype == torch.float32 or size_in % ALIGNED:  # no matrix unit takes these, or no wide copy
        sizes = {"tokens": 16, "block_o": 32, "block_i": 32, "num_warps": 4, "num_stages": 2}
    elif num_tokens > 64:
        block_i = PROMOTED if dtype.itemsize == 1 else 64
        sizes = {"tokens": 128, "block_o": 128, "block_i": block_i, "num_warps": 8, "num_stages": 3}
        return {**sizes, "parts": 1}
    else:
        tokens = max(TOKENS, triton.next_power_of_2(num_tokens))
        sizes = {"tokens": tokens, "block_o": 64, "block_i": PROMOTED, "num_warps": 4, "num_stages": 4}
    programs, steps, parts = triton.cdiv(size_out, sizes["block_o"]), triton.cdiv(size_in, sizes["block_i"]), 1
    while programs * parts < PROGRAMS and steps >= 2 * LEAST_STEPS * parts:
        parts *= 2
    return {**sizes, "parts": parts}


def launch_options(tiles: Tiles) -> dict[str, Any]:
    """Arguments of a launch with these tiles, for the compiler."""
    sizes = {name.upper(): tiles[name] for name in ("tokens", "block_o", "block_i")}
    return {**sizes, "num_warps": tiles["num_warps"], "num_stages": tiles["num_stages"]}
