"""Rounds rows to 8-bit floats with a scale for each 128 elements, after addition and norm, or a gate, if asked for.

Floor: x read and its codes written, D * (bytes of an element + 1 + 1/32) for each row; the addition reads the residual
and writes the sum, a gate reads twice the elements. Memory is the limit. Scales of one block of inputs lie together, as
products read them.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.quantized.quantize_f8 import Norm, block_of, norm_factor, num_warps, row_value
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import F8, LARGEST, LEAST_MAGNITUDE
from quire.kernels.linear.linear_f8_blocks import SIDE

ROWS = 4
"""Rows are made up to a multiple of it: torch's product wants so many."""
WIDEST = 4096
"""Elements that a program takes at once: several programs share a row that has no norm."""
_LARGEST = tl.constexpr(LARGEST)
_LEAST = tl.constexpr(LEAST_MAGNITUDE)


@triton.jit(do_not_specialize=["rows"])
def quantize_f8_blocks_kernel(
    x,
    residual,
    norm_weight,
    codes,
    scales,
    total,
    eps,
    rows,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SIDE: tl.constexpr,
    KIND: tl.constexpr,
):
    """Program (row, share of its D elements), in stretches of BLOCK. `scales` [ceil(D / SIDE), rows]."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * D
    factor = 1.0
    if norm_weight is not None:
        factor = norm_factor(x, residual, total, eps, start, D, BLOCK)
    block = tl.arange(0, BLOCK // SIDE)
    lanes = block[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    for first in range(tl.program_id(1) * BLOCK, D, tl.num_programs(1) * BLOCK):
        column = first + lanes
        value = row_value(x, residual, norm_weight, factor, start, column, D, KIND)
        magnitude = tl.abs(value)
        scale = tl.div_rn(tl.maximum(tl.max(magnitude, 1), _LEAST), _LARGEST)
        code = tl.div_rn(value, tl.zeros_like(value) + scale[:, None])
        code = tl.minimum(tl.maximum(code, -_LARGEST), _LARGEST)
        tl.store(codes + start + column, code.to(codes.dtype.element_ty), column < D)
        not_finite = tl.max((magnitude < float("inf")).to(tl.int32) ^ 1, 1)  # a maximum loses NaN
        number = first // SIDE + block
        place = scales + number.to(tl.int64) * rows + row
        tl.store(place, tl.where(not_finite == 0, scale, float("nan")), number * SIDE < D)


def quantize_f8_blocks(
    x: torch.Tensor, norm: Norm | None = None, gate: Gate | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (e4m3 [R, I]), their scales (float32 [ceil(I / 128), R]), and residual + x [T, I]: x without a residual.

    R is T made up to a multiple of 4, and what lies beyond T is not set. Equal to `quantize` of
    `kernels/linear/linear_f8.py` of each 128 inputs, after the norm where there is one; with a gate, x is
    [T, 2 * I] and the codes are those of `gated_activation`.
    """
    residual, weight, eps = norm or (None, None, 0.0)
    num_tokens, size = x.shape[0], x.shape[1] if gate is None else x.shape[1] // 2
    num_rows = triton.cdiv(num_tokens, ROWS) * ROWS
    codes = x.new_empty((num_rows, size), dtype=F8)
    scales = x.new_empty((triton.cdiv(size, SIDE), num_rows), dtype=torch.float32)
    total = x if residual is None else torch.empty_like(x)
    if x.numel():
        block = stretch_of(size)
        shares = triton.cdiv(size, block) if norm is None else 1  # a norm hangs on the whole row
        quantize_f8_blocks_kernel[(num_tokens, shares)](
            x,
            residual,
            weight,
            codes,
            scales,
            None if residual is None else total,
            eps,
            num_rows,
            D=size,
            BLOCK=block,
            SIDE=SIDE,
            KIND=gate,
            num_warps=num_warps(block),
        )
    return codes, scales, total


def stretch_of(size: int) -> int:
    """Elements of a program's stretch of rows of so many: at least one block's."""
    return max(SIDE, min(WIDEST, block_of(size)))
