"""The product of experts whose matrices are words of codes of groups: tiles of one expert's pairs.

Floor of N pairs that reach D experts: D * (bytes of an expert's matrix) + N * (I + O) * itemsize bytes, 2 * N * I * O
operations. Outputs are the rows of the matrix instruction and pairs its columns, as in `linear_group_words`: a warp
turns the words that it has copied into weights in the registers from which it multiplies them. A pair's sums run over
all inputs in one program: they are those it has without the others.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.experts.coded import CodedMatrices
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.gpu.experts.gate import gated_pairs
from quire.kernels.gpu.experts.pointers import BIAS, OFFSET, PACKED, SCALE, UNIT, of_expert
from quire.kernels.gpu.experts.sent import Sent, rows_of_tile
from quire.kernels.gpu.experts.tiles import word_tiles
from quire.kernels.gpu.quantized.group_tiles import slices_of
from quire.kernels.gpu.quantized.word_sums import word_sums
from quire.kernels.linear.linear_group_words import tile_inputs


@triton.jit(do_not_specialize=["first", "per_row", "by_pair", "tiles"])
def coded_words_kernel(
    x,
    pairs,
    starts,
    addresses,
    words,
    scale,
    offset,
    unit,
    bias,
    out,
    first,
    per_row,
    by_pair,
    size_in,
    size_out,
    tiles,
    group_size,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    RUN: tl.constexpr,
    PER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Grid (outputs, tiles of pairs): x [R, size_in] of the tile's rows by its expert's `tiles` tiles of words.

    Which row of x and of out [N, size_out] a pair has: see `coded.Product`. words, scale, offset, unit, bias: the first
    expert's, for their types. group_size, RUN and PER: see `slices_of`.
    """
    expert, places, real, own = rows_of_tile(pairs, starts, first, tl.program_id(1), EXPERTS, EXPERTS_BLOCK, ROWS)
    if expert >= EXPERTS:
        return
    given = tl.where(by_pair != 0, places, own // per_row)
    taken = tl.where(by_pair != 0, own, places)
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    rows = tl.where(outputs < size_out, outputs, 0)
    words = of_expert(addresses, expert, PACKED, words)
    scale = of_expert(addresses, expert, SCALE, scale)
    offset = of_expert(addresses, expert, OFFSET, offset)
    unit = of_expert(addresses, expert, UNIT, unit)
    bias = of_expert(addresses, expert, BIAS, bias)
    sums = word_sums(
        x + tl.where(real, given, 0).to(tl.int64)[None, :] * size_in,
        real[None, :],
        words,
        scale,
        offset,
        unit,
        rows,
        0,
        tiles,
        size_in,
        size_out,
        group_size,
        BITS,
        TABLE,
        RUN,
        PER,
        BLOCK_O,
        ROWS,
    )
    if bias is not None:
        sums += tl.load(bias + rows[:, None]).to(tl.float32)
    place = taken.to(tl.int64)[None, :] * size_out + outputs[:, None]
    tl.store(out + place, sums.to(out.dtype.element_ty), real[None, :] & (outputs < size_out)[:, None])


def group_words_of_pairs(
    x: torch.Tensor, matrices: CodedMatrices, where: Sent, per_row: int, by_pair: bool, gate: ExpertGate | None
) -> torch.Tensor:
    """See `coded.Product`: matrices of kind `group_words`."""
    x = x if gate is None else gated_pairs(x, gate)
    one, inputs, outputs = matrices.each[0], matrices.inputs, matrices.outputs
    num_pairs = where.pairs.numel()
    out = x.new_empty((num_pairs, outputs))
    tiles = word_tiles(num_pairs, where.experts, x.dtype, superblocks=one.scale.dtype == torch.int8)
    # a type of 8-bit floats is not known on every chip
    scale = one.scale.view(torch.uint8) if matrices.table == "e2m1" else one.scale
    coded_words_kernel[(triton.cdiv(outputs, tiles["block_o"]), where.num_tiles(tiles["rows"]))](
        x,
        where.pairs,
        where.starts,
        matrices.address_table,
        one.packed,
        scale,
        one.offset,
        one.unit,
        one.bias,
        out,
        where.first,
        per_row,
        int(by_pair),
        inputs,
        outputs,
        triton.cdiv(inputs, tile_inputs(matrices.bits)),
        **slices_of(inputs, one.scale.shape[0], matrices.bits),
        EXPERTS=where.experts,
        EXPERTS_BLOCK=triton.next_power_of_2(where.experts),
        BITS=matrices.bits,
        TABLE=matrices.table,
        ROWS=tiles["rows"],
        BLOCK_O=tiles["block_o"],
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
    )
    return out
