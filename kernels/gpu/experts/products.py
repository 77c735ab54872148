"""The two products of a layer's experts over sorted pairs: tiles of one expert's pairs, read and written by index.

Floor of N pairs that reach D experts: D * (bytes of an expert's matrix) + N * (I + O) * itemsize bytes, 2 * N * I * O
operations. A tile that no expert fills ends at once: as many are launched as T tokens may take.
"""

import triton
import triton.language as tl

from quire.kernels.gpu.experts.gate import gate_experts
from quire.kernels.gpu.experts.sort import tile_of
from quire.kernels.gpu.experts.tiles import AS_ROWS

_AS_ROWS = tl.constexpr(AS_ROWS)


@triton.jit
def _add(sums, tile, weight, ROWS: tl.constexpr):
    """sums + tile @ weight.T, [ROWS, BLOCK_O], or its transpose for few rows."""
    if ROWS >= _AS_ROWS:
        return tl.dot(tile, tl.trans(weight), sums, input_precision="ieee")
    else:  # the compiler reads on behind a return, and wants one type of result
        return tl.dot(weight, tl.trans(tile), sums, input_precision="ieee")


@triton.jit
def _sums(ROWS: tl.constexpr, BLOCK_O: tl.constexpr):
    if ROWS >= _AS_ROWS:
        return tl.zeros((ROWS, BLOCK_O), tl.float32)
    else:
        return tl.zeros((BLOCK_O, ROWS), tl.float32)


@triton.jit
def add_bias(sums, bias, outputs, size, ROWS: tl.constexpr):
    """sums + bias [size] of their outputs, which stand where `_add` puts them."""
    known = tl.load(bias + outputs, outputs < size, 0.0).to(tl.float32)
    return sums + (known[None, :] if ROWS >= _AS_ROWS else known[:, None])


@triton.jit
def experts_inner_kernel(
    x,
    pairs,
    starts,
    gate_up,
    gate_up_bias,
    out,
    hidden,
    inner,
    K: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Grid (columns of inner, tiles): x [T, hidden] of the tile's tokens by gate_up [E, 2 * inner, hidden].

    out [T * K, inner], by the place of a pair among the sorted ones.
    """
    expert, row, end = tile_of(starts, tl.program_id(1), EXPERTS, EXPERTS_BLOCK, ROWS)
    if expert >= EXPERTS:
        return
    rows = row + tl.arange(0, ROWS)
    real = (rows < end)[:, None]
    token = tl.load(pairs + rows, rows < end, other=0) // K
    tokens = x + token.to(tl.int64)[:, None] * hidden
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    gate_rows = gate_up + expert.to(tl.int64) * (2 * inner) * hidden
    gate_rows += tl.where(outputs < inner, outputs, 0)[:, None] * hidden
    up_rows = gate_rows + inner * hidden
    lanes = tl.arange(0, BLOCK_I)[None, :]
    gate, up = _sums(ROWS, BLOCK_O), _sums(ROWS, BLOCK_O)
    for start in range(0, hidden, BLOCK_I):
        place = start + lanes
        known = place < hidden
        tile = tl.load(tokens + place, real & known, 0.0)
        gate = _add(gate, tile, tl.load(gate_rows + place, known, 0.0), ROWS)
        up = _add(up, tile, tl.load(up_rows + place, known, 0.0), ROWS)
    if gate_up_bias is not None:
        biases = gate_up_bias + expert.to(tl.int64) * (2 * inner)
        gate = add_bias(gate, biases, outputs, inner, ROWS)
        up = add_bias(up, biases + inner, outputs, inner, ROWS)
    kind: tl.constexpr = out.dtype.element_ty
    opened = gate_experts(gate.to(kind), up.to(kind), KIND)
    if ROWS < _AS_ROWS:
        opened = tl.trans(opened)
    place = rows.to(tl.int64)[:, None] * inner + outputs[None, :]
    tl.store(out + place, opened, real & (outputs < inner)[None, :])


@triton.jit
def experts_outer_kernel(
    x,
    pairs,
    starts,
    down,
    down_bias,
    out,
    inner,
    hidden,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Grid (columns of hidden, tiles): x [T * K, inner] of the sorted pairs by down [E, hidden, inner].

    out [T * K, hidden], by pair.
    """
    expert, row, end = tile_of(starts, tl.program_id(1), EXPERTS, EXPERTS_BLOCK, ROWS)
    if expert >= EXPERTS:
        return
    rows = row + tl.arange(0, ROWS)
    real = (rows < end)[:, None]
    inner_rows = x + rows.to(tl.int64)[:, None] * inner
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    matrix = down + expert.to(tl.int64) * hidden * inner
    matrix += tl.where(outputs < hidden, outputs, 0)[:, None] * inner
    lanes = tl.arange(0, BLOCK_I)[None, :]
    sums = _sums(ROWS, BLOCK_O)
    for start in range(0, inner, BLOCK_I):
        place = start + lanes
        known = place < inner
        sums = _add(sums, tl.load(inner_rows + place, real & known, 0.0), tl.load(matrix + place, known, 0.0), ROWS)
    if down_bias is not None:
        sums = add_bias(sums, down_bias + expert.to(tl.int64) * hidden, outputs, hidden, ROWS)
    if ROWS < _AS_ROWS:
        sums = tl.trans(sums)
    pair = tl.load(pairs + rows, rows < end, other=0)
    place = pair.to(tl.int64)[:, None] * hidden + outputs[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), real & (outputs < hidden)[None, :])


@triton.jit(do_not_specialize=["first"])
def sum_experts_kernel(
    results, ids, weights, out, hidden, first, EXPERTS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (T, columns of hidden): out [T, hidden], the weighted sum of results [T * K, hidden] in their order."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(K):
        pair = token * K + j
        expert = tl.load(ids + pair) - first
        here = (expert >= 0) & (expert < EXPERTS)
        one = tl.load(results + pair * hidden + column, inside & here, other=0.0).to(tl.float32)
        total += tl.where(here, tl.load(weights + pair) * one, 0.0)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), inside)
