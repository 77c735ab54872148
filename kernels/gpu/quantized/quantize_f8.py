"""Rounds rows to 8-bit floats with a scale each, and adds the residual and takes the norm on the way if asked for.

Floor: x read and its codes written, D * (bytes of an element + 1) for each row; the addition reads the residual and
writes the sum. A row is passed over once for each number it hangs on, after the first time in the cache: memory is the
limit.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from quire.kernels.linear.linear_f8 import F8, LARGEST, LEAST_MAGNITUDE

WIDEST = 4096
"""Elements that a program takes at once."""
_LARGEST = tl.constexpr(LARGEST)
_LEAST = tl.constexpr(LEAST_MAGNITUDE)


@triton.jit
def row_value(x, residual, norm_weight, factor, place, column, inside):
    """The row's elements, float32: rounded to x's type after the addition, after the norm and after its weight."""
    kind = x.dtype.element_ty
    value = tl.load(x + place, inside, other=0.0)
    if residual is not None:
        before = tl.load(residual + place, inside, other=0.0)
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
        value = row_value(x, residual, None, 1.0, start + column, column, column < D)
        if residual is not None:
            tl.store(total + start + column, value, column < D)
        squares += value * value
    return tl.rsqrt(tl.sum(squares, 0) / D + eps)


@triton.jit
def row_magnitudes(x, residual, norm_weight, factor, start, D: tl.constexpr, BLOCK: tl.constexpr):
    """The largest magnitude in each lane of the row that begins at `start`, and 1 in lanes that are not finite.

    Its caller takes the maxima, the scale between them: one after the other they would hold more registers.
    """
    magnitudes = tl.zeros((BLOCK,), tl.float32)
    not_finite = tl.zeros((BLOCK,), tl.int32)  # a maximum loses NaN
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        magnitude = tl.abs(row_value(x, residual, norm_weight, factor, start + column, column, column < D))
        not_finite |= (magnitude < float("inf")).to(tl.int32) ^ 1
        magnitudes = tl.maximum(magnitudes, magnitude)
    return magnitudes, not_finite


@triton.jit
def quantize_f8_kernel(
    x, residual, norm_weight, input_scale, codes, scales, total, eps, D: tl.constexpr, BLOCK: tl.constexpr
):
    """One program for one row of D elements, in stretches of BLOCK."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * D
    factor = 1.0
    if norm_weight is not None:
        factor = norm_factor(x, residual, total, eps, start, D, BLOCK)
    magnitudes, not_finite = row_magnitudes(x, residual, norm_weight, factor, start, D, BLOCK)
    if input_scale is None:
        scale = tl.div_rn(tl.maximum(tl.max(magnitudes, 0), _LEAST), _LARGEST)
    else:
        scale = tl.load(input_scale)
    tl.store(scales + row, tl.where(tl.max(not_finite, 0) == 0, scale, float("nan")))
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = row_value(x, residual, norm_weight, factor, start + column, column, column < D)
        code = tl.minimum(tl.maximum(tl.div_rn(value, tl.zeros_like(value) + scale), -_LARGEST), _LARGEST)
        tl.store(codes + start + column, code.to(codes.dtype.element_ty), column < D)


class Norm(NamedTuple):
    """The norm that is taken before the rounding."""

    residual: torch.Tensor | None
    weight: torch.Tensor
    eps: float


def quantize_f8(
    x: torch.Tensor, input_scale: torch.Tensor | None, norm: Norm | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (e4m3 [T, I]), their scales (float32 [T]), and residual + x: x itself without a residual.

    Equal to `quantize` of `kernels/linear/linear_f8.py`, after the norm where there is one.
    """
    residual, weight, eps = norm or (None, None, 0.0)
    num_rows, size = x.shape
    codes, scales = x.new_empty(x.shape, dtype=F8), x.new_empty(num_rows, dtype=torch.float32)
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
            num_warps=num_warps(block),
        )
    return codes, scales, total


def block_of(size: int) -> int:
    """Elements of a program's stretch of rows of so many."""
    return min(WIDEST, 1 << (size - 1).bit_length())


def num_warps(block: int) -> int:
    """16 elements for each thread."""
    return max(1, block // 512)
