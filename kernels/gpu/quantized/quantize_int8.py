"""Rounds rows to 8-bit integers with a scale each; on the way adds the residual and takes the norm, or gates, if asked.

Floor: x read and its integers written, D * (bytes of an element + 1) for each row; the addition reads the residual and
writes the sum, a gate reads twice the elements. A row is passed over as `quantize_f8` does.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.quantized.quantize_f8 import Norm, block_of, norm_factor, num_warps, row_magnitudes, row_value
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_int8 import LARGEST, LEAST_MAGNITUDE

_LARGEST = tl.constexpr(float(LARGEST))
_LEAST = tl.constexpr(LEAST_MAGNITUDE)
_WHOLE = tl.constexpr(1.5 * 2**23)
"""A float32 of this size has no places behind the point: adding it rounds to whole numbers, halves to even."""


@triton.jit
def quantize_int8_kernel(
    x,
    residual,
    norm_weight,
    integers,
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
    magnitudes, not_finite, value = row_magnitudes(x, residual, norm_weight, factor, start, D, BLOCK, KIND)
    scale = tl.div_rn(tl.maximum(tl.max(magnitudes, 0), _LEAST), _LARGEST)
    is_finite = tl.max(not_finite, 0) == 0
    tl.store(scales + row, tl.where(is_finite, scale, float("nan")))
    for first in range(0, D, BLOCK):
        column = first + tl.arange(0, BLOCK)
        if D > BLOCK:
            value = row_value(x, residual, norm_weight, factor, start, column, D, KIND)
        whole = (tl.div_rn(value, tl.zeros_like(value) + scale) + _WHOLE) - _WHOLE
        tl.store(integers + start + column, tl.where(is_finite, whole, 0.0).to(tl.int8), column < D)


def quantize_int8(
    x: torch.Tensor, norm: Norm | None = None, gate: Gate | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers (int8 [T, I]), their scales (float32 [T]), and residual + x: x itself without a residual.

    Equal to `quantize` of `kernels/linear/linear_int8.py`, after the norm where there is one; with a gate, x is
    [T, 2 * I] and the integers are those of `gated_activation`.
    """
    residual, weight, eps = norm or (None, None, 0.0)
    num_rows, size = x.shape[0], x.shape[1] if gate is None else x.shape[1] // 2
    integers, scales = x.new_empty((num_rows, size), dtype=torch.int8), x.new_empty(num_rows, dtype=torch.float32)
    total = x if residual is None else torch.empty_like(x)
    if x.numel():
        block = block_of(size)
        quantize_int8_kernel[(num_rows,)](
            x,
            residual,
            weight,
            integers,
            scales,
            None if residual is None else total,
            eps,
            D=size,
            BLOCK=block,
            KIND=gate,
            num_warps=num_warps(block),
        )
    return integers, scales, total
