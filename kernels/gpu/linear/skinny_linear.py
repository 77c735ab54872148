"""Linear layers of at most 16 tokens, bound by reading the weights once, with all that surrounds them in the launch.

Floor of T tokens: (O * I + T * (I + O)) * itemsize bytes and 2 * T * O * I operations; 8B qkv (4096 -> 6144, bf16)
50.4 MB. Tokens are padded to the 16 rows of a matrix instruction, weights stream through shared memory in `num_stages`
tiles [block_o, block_i]. Each warp takes its own stretch of a tile's columns (a batched product) and the warps' sums
meet at the end, so that no warp waits for another or holds what another needs. A layer with few rows is split along I
as well: a second launch adds the parts in their order, so the result never depends on timing. The norm needs no pass of
its own: its sum of squares is taken on the way, and its factor is applied to the sums at the end.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.activation import activate
from quire.kernels.gpu.linear.tiles import ADD_BLOCK, MOST_TOKENS
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.linear.activation import Gate

_TOKENS = tl.constexpr(MOST_TOKENS)


@triton.jit(do_not_specialize=["num_tokens"])
def skinny_linear_kernel(
    x,
    residual,
    norm_weight,
    weight,
    bias,
    out,
    total,
    squares,
    num_tokens,
    size_in,
    size_out,
    eps,
    steps,
    GATE: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Program (column, part): BLOCK_O rows of weight times `steps` tiles of x, for all tokens.

    With SPLIT, `out` takes float32 sums [part, 16, size_out] and `squares` the sums of squares [part, 16] of x.
    With GATE, the first half of a tile is gate rows and the second half the up rows that belong to them.
    """
    column = tl.program_id(0)
    part = tl.program_id(1)
    lanes = tl.arange(0, BLOCK_O)
    if GATE is None:
        rows = column * BLOCK_O + lanes
        rows = tl.where(rows < size_out, rows, 0)
    else:
        rows = column * (BLOCK_O // 2) + lanes % (BLOCK_O // 2)
        rows = tl.where(rows < size_out // 2, rows, 0) + lanes // (BLOCK_O // 2) * (size_out // 2)
    weight += rows.to(tl.int64)[None, None, :] * size_in
    tokens = tl.arange(0, _TOKENS)
    within_step = tl.arange(0, WARPS)[:, None] * (BLOCK_I // WARPS) + tl.arange(0, BLOCK_I // WARPS)[None, :]

    sums = tl.zeros((WARPS, _TOKENS, BLOCK_O), tl.float32)
    squared = tl.zeros((WARPS, _TOKENS, BLOCK_I // WARPS), tl.float32)
    first = part * steps * BLOCK_I
    if norm_weight is not None:  # a step ahead: two bytes for each thread are too few for an asynchronous copy
        next_scale = tl.load(norm_weight + first + within_step, first + within_step < size_in, 0.0)
    for start in range(first, min(first + steps * BLOCK_I, size_in), BLOCK_I):
        inner = start + within_step
        known = inner < (start + BLOCK_I if EVEN else size_in)
        weights = tl.load(weight + inner[:, :, None], known[:, :, None], 0.0)
        at = tokens[None, :, None] * size_in + inner[:, None, :]
        inside = (tokens < num_tokens)[None, :, None] & known[:, None, :]
        tile = tl.load(x + at, inside, 0.0)
        if norm_weight is not None:
            wide = tile.to(tl.float32)
            if residual is not None:
                wide += tl.load(residual + at, inside, 0.0).to(tl.float32)
                tl.store(total + at, wide.to(x.dtype.element_ty), inside & (column == 0))
                wide = wide.to(x.dtype.element_ty).to(tl.float32)
            squared += wide * wide
            scale = next_scale.to(tl.float32)[:, None, :]
            next_scale = tl.load(norm_weight + inner + BLOCK_I, inner + BLOCK_I < size_in, 0.0)
            tile = (wide * scale).to(x.dtype.element_ty)
        sums = tl.dot(tile, weights, sums, input_precision="ieee")
    sums = tl.sum(sums, 0)
    squares_of_tokens = tl.sum(tl.sum(squared, 2), 0)
    tokens = tokens[:, None]
    real = tokens < num_tokens

    if SPLIT:
        columns = column * BLOCK_O + lanes[None, :]
        tl.store(out + (part * _TOKENS + tokens) * size_out + columns, sums, real & (columns < size_out))
        if norm_weight is not None:
            place = squares + part * _TOKENS + tl.arange(0, _TOKENS)
            tl.store(place, squares_of_tokens, (tl.arange(0, _TOKENS) < num_tokens) & (column == 0))
    else:
        if norm_weight is not None:
            sums *= tl.rsqrt(squares_of_tokens / size_in + eps)[:, None]
        if bias is not None:
            sums += tl.load(bias + rows)[None, :].to(tl.float32)
        if GATE is None:
            columns = column * BLOCK_O + lanes[None, :]
            width = size_out
        else:
            gate, up = tl.split(sums.reshape(_TOKENS, 2, BLOCK_O // 2).permute(0, 2, 1))
            sums = activate(gate, GATE) * up
            columns = column * (BLOCK_O // 2) + tl.arange(0, BLOCK_O // 2)[None, :]
            width = size_out // 2
        tl.store(out + tokens * width + columns, sums.to(out.dtype.element_ty), real & (columns < width))


@triton.jit
def add_parts_kernel(
    sums,
    squares,
    bias,
    out,
    size_in,
    size_out,
    eps,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (token, tile): adds the parts of a split layer in their order. ROWS: of a part.

    Floor: PARTS * T * O * 4 bytes.
    """
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    width = size_out if GATE is None else size_out // 2
    inside = columns < width
    scale = 1.0
    if NORM:
        square = 0.0
        for part in tl.static_range(PARTS):
            square += tl.load(squares + part * ROWS + token)
        scale = tl.rsqrt(square / size_in + eps)
    result = _column(sums, bias, token, columns, inside, scale, size_out, PARTS, ROWS, BLOCK)
    if GATE is not None:
        up = _column(sums, bias, token, columns + width, inside, scale, size_out, PARTS, ROWS, BLOCK)
        result = activate(result, GATE) * up
    tl.store(out + token * width + columns, result.to(out.dtype.element_ty), inside)


@triton.jit
def _column(
    sums,
    bias,
    token,
    columns,
    inside,
    scale,
    size_out,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    result = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        result += tl.load(sums + (part * ROWS + token) * size_out + columns, inside, 0.0)
    result *= scale
    if bias is not None:
        result += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    return result


class Norm(NamedTuple):
    """The norm that the launch applies to x before the weights."""

    residual: torch.Tensor | None
    weight: torch.Tensor
    eps: float
    total: torch.Tensor


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    tiles: Tiles,
    norm: Norm | None = None,
) -> torch.Tensor:
    """The layer for at most 16 tokens by the kernels of this file; [T, O], or [T, O / 2] with a gate."""
    num_tokens, size_in = x.shape
    size_out = weight.shape[0]
    out = x.new_empty((num_tokens, size_out if gate is None else size_out // 2))
    if not out.numel():
        return out
    residual, norm_weight, eps, total = norm or (None, None, 0.0, None)
    block_o, block_i, parts = tiles["block_o"], tiles["block_i"], tiles["parts"]
    is_split = parts > 1
    sums = x.new_empty((parts, MOST_TOKENS, size_out), dtype=torch.float32) if is_split else out
    squares = x.new_empty((parts, MOST_TOKENS), dtype=torch.float32) if is_split and norm else None
    skinny_linear_kernel[(triton.cdiv(size_out, block_o), parts)](
        x,
        residual,
        norm_weight,
        weight,
        None if is_split else bias,
        sums,
        total,
        squares,
        num_tokens,
        size_in,
        size_out,
        eps,
        triton.cdiv(triton.cdiv(size_in, block_i), parts),
        GATE=None if is_split else gate,
        SPLIT=is_split,
        EVEN=size_in % block_i == 0,
        BLOCK_O=block_o,
        BLOCK_I=block_i,
        WARPS=tiles["num_warps"],
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
    )
    if is_split:
        add_parts_kernel[(num_tokens, triton.cdiv(out.shape[1], ADD_BLOCK))](
            sums,
            squares,
            bias,
            out,
            size_in,
            size_out,
            eps,
            NORM=norm is not None,
            GATE=gate,
            PARTS=parts,
            ROWS=MOST_TOKENS,
            BLOCK=ADD_BLOCK,
            num_warps=4,
        )
    return out
