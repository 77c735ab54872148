"""The product of experts whose weights are 8-bit floats in blocks of 128 x 128, over sorted pairs.

Floor of N pairs that reach D experts: D * O * I + N * (I * (bytes of an element) + O * (bytes of a result)) bytes,
2 * N * O * I operations; scales are some thousandths of that. Sums are those of `product_f8_blocks`.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.experts.coded import CodedMatrices
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.gpu.experts.coded_f8 import tiles_of
from quire.kernels.gpu.experts.gate import gated_before
from quire.kernels.gpu.experts.pointers import BIAS, PACKED, SCALE, of_expert
from quire.kernels.gpu.experts.sent import Sent, rows_of_tile
from quire.kernels.gpu.quantized.linear_f8 import are_rounded
from quire.kernels.gpu.quantized.product_f8 import launch_options, readable
from quire.kernels.gpu.quantized.product_f8_blocks import add_f8_block, as_rows, block_factor, block_sums
from quire.kernels.gpu.quantized.quantize_f8_blocks import quantize_f8_blocks
from quire.kernels.linear.linear_f8_blocks import SIDE


@triton.jit(do_not_specialize=["scaled_rows", "first", "per_row", "by_pair"])
def coded_f8_blocks_kernel(
    x,
    row_scale,
    pairs,
    starts,
    addresses,
    weight,
    scale,
    bias,
    out,
    scaled_rows,
    first,
    per_row,
    by_pair,
    size_in,
    size_out,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Grid (columns of outputs, tiles): BLOCK_O rows of an expert's weight for TOKENS of its pairs.

    Tiles do not reach over the edge of a block. x is codes with a `row_scale` [ceil(I / SIDE), scaled_rows], or
    without one numbers as they are; which of its rows, and of out [N, size_out], a pair has: `coded.Product`,
    where `per_row` is 0 if x lies sorted. weight, scale, bias: the first expert's, for their types.
    """
    expert, places, real, own = rows_of_tile(pairs, starts, first, tl.program_id(1), EXPERTS, EXPERTS_BLOCK, TOKENS)
    if expert >= EXPERTS:
        return
    given = tl.where(per_row == 0, places, own // tl.maximum(per_row, 1))
    taken = tl.where(by_pair != 0, own, places)
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    inside = outputs < size_out
    tokens = x + given.to(tl.int64)[:, None] * size_in
    matrix = of_expert(addresses, expert, PACKED, weight)
    matrix += tl.where(inside, outputs, 0).to(tl.int64)[:, None] * size_in
    scale = of_expert(addresses, expert, SCALE, scale)
    scale += tl.program_id(0) * BLOCK_O // SIDE * tl.cdiv(size_in, SIDE)
    lanes = tl.arange(0, BLOCK_I)[None, :]

    ROUNDED: tl.constexpr = row_scale is not None
    sums = block_sums(TOKENS, BLOCK_O, ROUNDED)
    factor = block_factor(row_scale, scale, given, real, scaled_rows, 0, SIDE)
    for start in range(0, size_in, BLOCK_I):
        inner = start + lanes
        known = inner < size_in
        codes = tl.load(matrix + inner, known, 0.0)
        tile = tl.load(tokens + inner, real[:, None] & known, 0.0)
        # a tile ahead, as in `product_f8_blocks_kernel`
        ahead = block_factor(row_scale, scale, given, real, scaled_rows, min(start + BLOCK_I, size_in - 1), SIDE)
        sums = add_f8_block(sums, codes, tile, factor, ROUNDED, TOKENS, BLOCK_I)
        factor = ahead

    sums = as_rows(sums, ROUNDED, TOKENS)
    if bias is not None:
        sums += tl.load(of_expert(addresses, expert, BIAS, bias) + outputs, inside, 0.0)[None, :].to(tl.float32)
    place = taken.to(tl.int64)[:, None] * size_out + outputs[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), real[:, None] & inside[None, :])


def f8_blocks_of_pairs(
    x: torch.Tensor,
    matrices: CodedMatrices,
    where: Sent,
    per_row: int,
    by_pair: bool,
    gate: ExpertGate | None,
) -> torch.Tensor:
    """See `coded.Product`: matrices of kind `f8_blocks`."""
    one, num_pairs, row_scale = matrices.each[0], where.pairs.numel(), None
    out = x.new_empty((num_pairs, matrices.outputs))
    rounds = are_rounded(x, matrices.activations)
    x, joined = gated_before(x, gate, joins=rounds)
    if rounds:
        x, row_scale, _ = quantize_f8_blocks(x, gate=joined)
    tiles = tiles_of(num_pairs, where.experts, matrices.inputs, matrices.outputs, x.dtype)
    grid = (triton.cdiv(matrices.outputs, tiles["block_o"]), where.num_tiles(tiles["tokens"]))
    coded_f8_blocks_kernel[grid](
        x,
        row_scale,
        where.pairs,
        where.starts,
        matrices.address_table,
        readable(one.packed),
        one.scale,
        one.bias,
        out,
        0 if row_scale is None else row_scale.shape[1],
        where.first,
        0 if by_pair else per_row,
        int(by_pair),
        matrices.inputs,
        matrices.outputs,
        EXPERTS=where.experts,
        EXPERTS_BLOCK=triton.next_power_of_2(where.experts),
        SIDE=SIDE,
        **launch_options(tiles),
    )
    return out
