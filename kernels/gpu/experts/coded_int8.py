"""The product of experts whose weights are 8-bit integers with a scale for each output, over sorted pairs.

Floor of N pairs that reach D experts: D * O * I + N * (I + O * (bytes of a result)) bytes, 2 * N * O * I operations.
Sums are exact, as those of `product_int8`.
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
from quire.kernels.gpu.quantized.product_f8 import launch_options
from quire.kernels.gpu.quantized.product_int8 import scaled
from quire.kernels.gpu.quantized.quantize_int8 import quantize_int8


@triton.jit(do_not_specialize=["first", "per_row", "by_pair"])
def coded_int8_kernel(
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

    x is integers with a `row_scale` each; which of its rows, and of out [N, size_out], a pair has: `coded.Product`,
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
    lanes = tl.arange(0, BLOCK_I)[None, :]

    sums = tl.zeros((BLOCK_O, TOKENS), tl.int32)
    for start in range(0, size_in, BLOCK_I):
        inner = start + lanes
        known = inner < size_in
        tile = tl.load(tokens + inner, real[:, None] & known, 0)
        sums = tl.dot(tl.load(matrix + inner, known, 0), tl.trans(tile), sums, out_dtype=tl.int32)

    of_output = tl.load(of_expert(addresses, expert, SCALE, scale) + outputs, inside, 0.0)[None, :]
    offset = None
    if bias is not None:
        offset = tl.load(of_expert(addresses, expert, BIAS, bias) + outputs, inside, 0.0)[None, :].to(tl.float32)
    result = scaled(tl.trans(sums), of_output, tl.load(row_scale + given, real, 0.0)[:, None], offset)
    place = taken.to(tl.int64)[:, None] * size_out + outputs[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), real[:, None] & inside[None, :])


def int8_of_pairs(
    x: torch.Tensor,
    matrices: CodedMatrices,
    where: Sent,
    per_row: int,
    by_pair: bool,
    gate: ExpertGate | None,
) -> torch.Tensor:
    """See `coded.Product`: matrices of kind `int8`."""
    one, num_pairs = matrices.each[0], where.pairs.numel()
    out = x.new_empty((num_pairs, matrices.outputs))
    x, joined = gated_before(x, gate, joins=True)
    integers, row_scale, _ = quantize_int8(x, gate=joined)
    tiles = tiles_of(num_pairs, where.experts, matrices.inputs, matrices.outputs, integers.dtype)
    grid = (triton.cdiv(matrices.outputs, tiles["block_o"]), where.num_tiles(tiles["tokens"]))
    coded_int8_kernel[grid](
        integers,
        row_scale,
        where.pairs,
        where.starts,
        matrices.address_table,
        one.packed,
        one.scale,
        one.bias,
        out,
        where.first,
        0 if by_pair else per_row,
        int(by_pair),
        matrices.inputs,
        matrices.outputs,
        EXPERTS=where.experts,
        EXPERTS_BLOCK=triton.next_power_of_2(where.experts),
        **launch_options(tiles),
    )
    return out
