"""Rounds rows to 8-bit floats with a scale each; on the way adds the residual and takes the norm, or gates, if asked.

Floor: x read and its codes written, D * (bytes of an element + 1) for each row; the addition reads the residual and
writes the sum, a gate reads twice the elements. Rows of up to `WIDEST` elements are kept in registers from their scale
to their codes, wider ones made a second time, out of the cache: memory is the limit.

What attention makes has no such launch: a row's scale hangs on all heads of a token, and no program of its last launch
sees more than those of one key-value head. The output projection rounds it in a launch of its own.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.activation import gated
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import F8, LARGEST, LEAST_MAGNITUDE

WIDEST = 16384
"""Elements that a program takes at once."""
_LARGEST = tl.constexpr(LARGEST)
_LEAST = tl.constexpr(LEAST_MAGNITUDE)


@triton.jit
def row_value(x, residual, norm_weight, factor, start, column, D: tl.constexpr, KIND: tl.constexpr):
    """Elements of the row of D that begins at `start`, float32: rounded to x's type after each step of those asked for.

    The steps: with KIND, the gate of x's row, which is gate and up; the addition; the norm; the norm's weight.
    """
    kind = x.dtype.element_ty
    inside = column < D
    if KIND is not None:
        gate = tl.load(x + 2 * start + column, inside, other=0.0)
        value = gated(gate, tl.load(x + 2 * start + D + column, inside, other=0.0), KIND)
    else:
        value = tl.load(x + start + column, inside, other=0.0)
    if residual is not None:
        before = tl.load(residual + start + column, inside, other=0.0)
        value = (before.to(tl.float32) + value.to(tl.float32)).to(kind)
    if norm_weight is not None:
        gain = tl.load(norm_weight + column, inside, other=0.0)
        value = ((value.to(tl.float32) * factor).to(kind).to(tl.float32) * gain.to(tl.float32)).to(kind)
    return value.to(tl.float32)


@triton.jit
def norm_factor(x, residual, total, eps, start, D: tl.constexpr, BLOCK: tl.constexpr):
    """One over the root of the mean square of the row that begins at `start`; its sum goes into `total`."""
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = row_value(x, residual, None, 1.0, start, column, D, None)
        if residual is not None:
            tl.store(total + start + column, value, column < D)
        squares += value * value
    return tl.rsqrt(tl.sum(squares, 0) / D + eps)


@triton.jit
def row_magnitudes(x, residual, norm_weight, factor, start, D: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """The largest magnitude in each lane of the row that begins at `start`, and 1 in lanes that are not finite; and the
    elements of its last stretch, which are all of a row that is no longer.

    Its caller takes the maxima, the scale between them: one after the other they would hold more registers.
    """
    magnitudes = tl.zeros((BLOCK,), tl.float32)
    not_finite = tl.zeros((BLOCK,), tl.int32)  # a maximum loses NaN
    value = magnitudes
    for first in range(0, D, BLOCK):
        value = row_value(x, residual, norm_weight, factor, start, first + tl.arange(0, BLOCK), D, KIND)
        magnitude = tl.abs(value)
        not_finite |= (magnitude < float("inf")).to(tl.int32) ^ 1
        magnitudes = tl.maximum(magnitudes, magnitude)
    return magnitudes, not_finite, value


@triton.jit
def round_row(
    x,
    residual,
    norm_weight,
    input_scale,
    codes,
    scales,
    factor,
    start,
    row,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """Codes of the row of x that begins at `start`, as `row_value` makes it, become row `row` of `codes`."""
    target = row.to(tl.int64) * D
    magnitudes, not_finite, value = row_magnitudes(x, residual, norm_weight, factor, start, D, BLOCK, KIND)
    if input_scale is None:
        scale = tl.div_rn(tl.maximum(tl.max(magnitudes, 0), _LEAST), _LARGEST)
    else:
        scale = tl.load(input_scale)
    tl.store(scales + row, tl.where(tl.max(not_finite, 0) == 0, scale, float("nan")))
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        if D > BLOCK:
            value = row_value(x, residual, norm_weight, factor, start, column, D, KIND)
        code = tl.minimum(tl.maximum(tl.div_rn(value, tl.zeros_like(value) + scale), -_LARGEST), _LARGEST)
        tl.store(codes + target + column, code.to(codes.dtype.element_ty), column < D)


@triton.jit
def quantize_f8_kernel(
    x,
    residual,
    norm_weight,
    input_scale,
    codes,
    scales,
    total,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """One program for one row of D elements, in stretches of BLOCK."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * D
    factor = 1.0
    if norm_weight is not None:
        factor = norm_factor(x, residual, total, eps, start, D, BLOCK)
    round_row(x, residual, norm_weight, input_scale, codes, scales, factor, start, row, D, BLOCK, KIND)


class Norm(NamedTuple):
    """The norm that is taken before the rounding."""

    residual: torch.Tensor | None
    weight: torch.Tensor
    eps: float


def quantize_f8(
    x: torch.Tensor, input_scale: torch.Tensor | None, norm: Norm | None = None, gate: Gate | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (e4m3 [T, I]), their scales (float32 [T]), and residual + x: x itself without a residual.

    Equal to `quantize` of `kernels/linear/linear_f8.py`, after the norm where there is one; with a gate, x is
    [T, 2 * I] and the codes are those of `gated_activation`.
    """
    residual, weight, eps = norm or (None, None, 0.0)
    num_rows, size = x.shape[0], x.shape[1] if gate is None else x.shape[1] // 2
    codes, scales = x.new_empty((num_rows, size), dtype=F8), x.new_empty(num_rows, dtype=torch.float32)
    total = x if residual is None else torch.empty_like(x)
    if x.numel():
        block = block_of(size)
        quantize_f8_kernel[(num_rows,)](
            x,
            residual,
            weight,
            input_scale,
            codes,
            scales,
            None if residual is None else total,
            eps,
            D=size,
            BLOCK=block,
            KIND=gate,
            num_warps=num_warps(block),
        )
    return codes, scales, total


def block_of(size: int) -> int:
    """Elements of a program's stretch of rows of so many."""
    return min(WIDEST, 1 << (size - 1).bit_length())


def num_warps(block: int) -> int:
    """16 elements for each thread."""
    return max(1, block // 512)
