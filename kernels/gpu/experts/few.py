"""The two products of a layer's experts for few pairs: each reads its own expert's matrices, and nothing is sorted.

Floor: (bytes of an expert) for each pair. A pair has one row: the matrix instruction's other columns are zeros. What a
pair's result counts is multiplied into its inner row, so that one sum runs over all of a token's experts.
"""

import triton
import triton.language as tl

from quire.kernels.gpu.experts.gate import gate_experts

_COLUMNS = tl.constexpr(16)
"""Columns of the narrowest matrix instruction."""


@triton.jit(do_not_specialize=["first"])
def few_inner_kernel(
    x,
    ids,
    weights,
    gate_up,
    gate_up_bias,
    out,
    hidden,
    inner,
    first,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Grid (columns of inner, T * K): x [T, hidden] by gate_up [E, 2 * inner, hidden]; out [T * K, inner]."""
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(ids + pair) - first
    if (expert < 0) | (expert >= EXPERTS):
        return
    row = x + pair // K * hidden
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    gate_rows = gate_up + expert.to(tl.int64) * (2 * inner) * hidden
    gate_rows += tl.where(outputs < inner, outputs, 0)[:, None] * hidden
    up_rows = gate_rows + inner * hidden
    lanes = tl.arange(0, BLOCK_I)[None, :]
    real = (tl.arange(0, _COLUMNS) == 0)[:, None]
    gate = tl.zeros((BLOCK_O, _COLUMNS), tl.float32)
    up = tl.zeros((BLOCK_O, _COLUMNS), tl.float32)
    for start in range(0, hidden, BLOCK_I):
        place = start + lanes
        known = place < hidden
        tile = tl.trans(tl.load(row + place, real & known, 0.0))
        gate = tl.dot(tl.load(gate_rows + place, known, 0.0), tile, gate, input_precision="ieee")
        up = tl.dot(tl.load(up_rows + place, known, 0.0), tile, up, input_precision="ieee")
    kind: tl.constexpr = out.dtype.element_ty
    gates, ups = tl.sum(gate, 1), tl.sum(up, 1)
    if gate_up_bias is not None:
        place = gate_up_bias + expert.to(tl.int64) * (2 * inner) + outputs
        gates += tl.load(place, outputs < inner, 0.0).to(tl.float32)
        ups += tl.load(place + inner, outputs < inner, 0.0).to(tl.float32)
    opened = gate_experts(gates.to(kind), ups.to(kind), KIND)
    opened = (opened.to(tl.float32) * tl.load(weights + pair)).to(kind)
    tl.store(out + pair * inner + outputs, opened, outputs < inner)


@triton.jit(do_not_specialize=["first"])
def few_outer_kernel(
    x,
    ids,
    weights,
    down,
    down_bias,
    out,
    inner,
    hidden,
    first,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Grid (columns of hidden, T): the sum of x [T * K, inner] by down [E, hidden, inner]; out [T, hidden].

    weights: for the biases; in x they are already.
    """
    token = tl.program_id(1).to(tl.int64)
    outputs = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    rows = tl.where(outputs < hidden, outputs, 0)[:, None] * inner
    choices = tl.arange(0, K_BLOCK)
    experts = tl.load(ids + token * K + choices, choices < K, other=0) - first
    lanes = tl.arange(0, BLOCK_I)[None, :]
    real = (tl.arange(0, _COLUMNS) == 0)[:, None]
    sums = tl.zeros((BLOCK_O, _COLUMNS), tl.float32)
    steps = tl.cdiv(inner, BLOCK_I)
    for step in range(K * steps):  # all experts in one loop, so that loads run ahead from one into the next
        choice = step // steps
        expert = tl.sum(tl.where(choices == choice, experts, 0))
        here = (expert >= 0) & (expert < EXPERTS)
        place = step % steps * BLOCK_I + lanes
        known = (place < inner) & here
        tile = tl.load(x + (token * K + choice) * inner + place, real & known, 0.0)
        matrix = down + tl.where(here, expert, 0).to(tl.int64) * hidden * inner
        sums = tl.dot(tl.load(matrix + rows + place, known, 0.0), tl.trans(tile), sums, input_precision="ieee")
    total = tl.sum(sums, 1)
    if down_bias is not None:
        for choice in range(K):
            expert = tl.load(ids + token * K + choice) - first
            here = (expert >= 0) & (expert < EXPERTS)
            place = down_bias + tl.where(here, expert, 0).to(tl.int64) * hidden + outputs
            bias = tl.load(place, here & (outputs < hidden), 0.0).to(tl.float32)
            total += tl.where(here, tl.load(weights + token * K + choice), 0.0) * bias
    tl.store(out + token * hidden + outputs, total.to(out.dtype.element_ty), outputs < hidden)
