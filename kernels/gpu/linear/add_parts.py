"""Adds the parts of a layer that is split along its inputs, in their order: the result never depends on timing."""

import triton
import triton.language as tl

from quire.kernels.gpu.linear.activation import activate


@triton.jit
def add_parts_kernel(
    sums,
    bias,
    out,
    size_out,
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
    result = _column(sums, bias, token, columns, inside, size_out, PARTS, ROWS, BLOCK)
    if GATE is not None:
        up = _column(sums, bias, token, columns + width, inside, size_out, PARTS, ROWS, BLOCK)
        result = activate(result, GATE) * up
    tl.store(out + token * width + columns, result.to(out.dtype.element_ty), inside)


@triton.jit
def _column(
    sums,
    bias,
    token,
    columns,
    inside,
    size_out,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    result = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        result += tl.load(sums + (part * ROWS + token) * size_out + columns, inside, 0.0)
    if bias is not None:
        result += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    return result
