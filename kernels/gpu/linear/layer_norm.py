"""Layer norm with the residual addition: each row is read once and kept in registers.

Floor: x and the residual read, the result written, 3 * D * (bytes of an element) for each row; memory is the limit.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.tiles import WIDEST_NORM, layer_norm_warps


@triton.jit
def layer_norm_kernel(x, residual, weight, bias, out, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    """One program for one row. BLOCK: D, padded."""
    column = tl.arange(0, BLOCK)
    inside = column < D
    place = tl.program_id(0).to(tl.int64) * D + column
    value = tl.load(x + place, inside, other=0.0)
    if residual is not None:
        before = tl.load(residual + place, inside, other=0.0)
        value = (before.to(tl.float32) + value.to(tl.float32)).to(value.dtype)
    wide = value.to(tl.float32)
    centred = tl.where(inside, wide - tl.sum(wide, 0) / D, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 0) / D + eps)
    gain = tl.load(weight + column, inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, inside, other=0.0).to(tl.float32)
    tl.store(out + place, (centred * factor * gain + shift).to(out.dtype.element_ty), inside)


def layer_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """See `quire.kernels.linear.layer_norm`."""
    num_rows, size = x.shape
    if size > WIDEST_NORM:
        raise ValueError(f"x: rows of at most {WIDEST_NORM} elements run on GPUs, got {size}")
    out = torch.empty_like(x)
    if num_rows:
        block = triton.next_power_of_2(size)
        layer_norm_kernel[(num_rows,)](
            x, residual, weight, bias, out, eps, D=size, BLOCK=block, num_warps=layer_norm_warps(block)
        )
    return out
