"""The product of experts whose weights are 8-bit floats with a scale for each output, over sorted pairs.

Floor of N pairs that reach D experts: D * O * I + N * (I * (bytes of an element) + O * (bytes of a result)) bytes,
2 * N * O * I operations. Sums are those of `product_f8`. Scales of activations that were measured beforehand differ
between experts, so rows are rounded for each pair then, and else once for each token.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.experts.coded import CodedMatrices
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.gpu.experts.gate import gated_before
from quire.kernels.gpu.experts.pointers import BIAS, PACKED, SCALE, UNIT, of_expert
from quire.kernels.gpu.experts.sent import Sent, rows_of_tile
from quire.kernels.gpu.experts.tiles import are_few
from quire.kernels.gpu.quantized.linear_f8 import are_rounded
from quire.kernels.gpu.quantized.product_f8 import add_f8, default_tiles, launch_options, readable
from quire.kernels.gpu.quantized.quantize_f8 import block_of, num_warps, quantize_f8, round_row
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import F8

MOST_OUTPUTS = 64
"""Outputs of a program: more sums would not fit the registers beside the rows of pairs, which lie anywhere."""

FEW_STAGES = 8
"""Stages of the programs of few pairs: some 56 KB of codes under way for each."""


@triton.jit(do_not_specialize=["first", "per_row", "by_pair"])
def coded_f8_kernel(
    x,
    row_scale,
    pairs,
    starts,
    addresses,
    weight,
    scale,
    bias,
    out,
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
):
    """Grid (columns of outputs, tiles): BLOCK_O rows of an expert's weight for TOKENS of its pairs.

    x is codes with a `row_scale` each, or without one numbers as they are; which of its rows, and of those of out
    [N, size_out], a pair has: `coded.Product`, where `per_row` is 0 if x lies sorted. weight, scale, bias: the first
    expert's, for their types.
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
    lanes = tl.arange(0, BLOCK_I)[None, :]

    sums = tl.zeros((BLOCK_O, TOKENS), tl.float32)
    for start in range(0, size_in, BLOCK_I):
        inner = start + lanes
        known = inner < size_in
        codes = tl.load(matrix + inner, known, 0.0)
        tile = tl.load(tokens + inner, real[:, None] & known, 0.0)
        sums = add_f8(sums, codes, tile, row_scale is not None, BLOCK_I)

    sums = tl.trans(sums)
    sums *= tl.load(of_expert(addresses, expert, SCALE, scale) + outputs, inside, 0.0)[None, :]
    if row_scale is not None:
        sums *= tl.load(row_scale + given, real, 0.0)[:, None]
    if bias is not None:
        sums += tl.load(of_expert(addresses, expert, BIAS, bias) + outputs, inside, 0.0)[None, :].to(tl.float32)
    place = taken.to(tl.int64)[:, None] * size_out + outputs[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["first", "per_row"])
def quantize_pairs_f8_kernel(
    x,
    pairs,
    starts,
    addresses,
    input_scale,
    codes,
    scales,
    first,
    per_row,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """Program for a sorted place: codes [N, D] and scales [N] of its row of x, by the scale [1] of its expert."""
    place = tl.program_id(0)
    expert, _, _, own = rows_of_tile(pairs, starts, first, place, EXPERTS, EXPERTS_BLOCK, 1)
    if expert >= EXPERTS:
        return
    given = tl.where(per_row == 0, place, tl.sum(own) // tl.maximum(per_row, 1))
    scale = of_expert(addresses, expert, UNIT, input_scale)
    round_row(x, None, None, scale, codes, scales, 1.0, given.to(tl.int64) * D, place, D, BLOCK, KIND)


def f8_of_pairs(
    x: torch.Tensor,
    matrices: CodedMatrices,
    where: Sent,
    per_row: int,
    by_pair: bool,
    gate: ExpertGate | None,
) -> torch.Tensor:
    """See `coded.Product`: matrices of kind `f8`."""
    one, num_pairs, row_scale = matrices.each[0], where.pairs.numel(), None
    out = x.new_empty((num_pairs, matrices.outputs))
    rows_for, rounds = 0 if by_pair else per_row, are_rounded(x, matrices.activations)
    x, joined = gated_before(x, gate, joins=rounds)
    if rounds and one.unit is None:
        x, row_scale, _ = quantize_f8(x, None, gate=joined)
    elif rounds:
        x, row_scale = quantize_pairs_f8(x, matrices, where, rows_for, joined)
        rows_for = 0
    tiles = tiles_of(num_pairs, where.experts, matrices.inputs, matrices.outputs, x.dtype)
    coded_f8_kernel[(triton.cdiv(matrices.outputs, tiles["block_o"]), where.num_tiles(tiles["tokens"]))](
        x,
        row_scale,
        where.pairs,
        where.starts,
        matrices.address_table,
        readable(one.packed),
        one.scale,
        one.bias,
        out,
        where.first,
        rows_for,
        int(by_pair),
        matrices.inputs,
        matrices.outputs,
        EXPERTS=where.experts,
        EXPERTS_BLOCK=triton.next_power_of_2(where.experts),
        **launch_options(tiles),
    )
    return out


def quantize_pairs_f8(
    x: torch.Tensor, matrices: CodedMatrices, where: Sent, per_row: int, gate: Gate | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (e4m3 [N, inputs]) and their scales (float32 [N]) of sorted pairs, each by its expert's scale of inputs.

    A place p has the row x[pairs[p] // per_row], or x[p] where `per_row` is 0. With a gate, x is [R, 2 * inputs].
    """
    num_pairs, size = where.pairs.numel(), matrices.inputs
    codes, scales = x.new_empty((num_pairs, size), dtype=F8), x.new_empty(num_pairs, dtype=torch.float32)
    block = block_of(size)
    quantize_pairs_f8_kernel[(num_pairs,)](
        x,
        where.pairs,
        where.starts,
        matrices.address_table,
        matrices.each[0].unit,
        codes,
        scales,
        where.first,
        per_row,
        EXPERTS=where.experts,
        EXPERTS_BLOCK=triton.next_power_of_2(where.experts),
        D=size,
        BLOCK=block,
        KIND=gate,
        num_warps=num_warps(block),
    )
    return codes, scales


def tiles_of(num_pairs: int, experts: int, size_in: int, size_out: int, dtype: torch.dtype) -> Tiles:
    """Tiles of a product whose x has this type: of more pairs than an expert has if all have equally many.

    Of fewer, a second tile of an expert would often read its matrix again. Few programs have more codes under way.
    """
    tiles = default_tiles(triton.cdiv(3 * num_pairs, 2 * experts), size_in, size_out, dtype)
    if are_few(num_pairs, experts) and tiles["block_o"] == MOST_OUTPUTS:
        return {**tiles, "num_stages": FEW_STAGES}
    return {**tiles, "block_o": min(MOST_OUTPUTS, tiles["block_o"])}
