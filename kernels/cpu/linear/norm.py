"""RMS norms for CPUs: one pass over memory, the same rounding as the reference. Gains in float32 beside activations in
16 bits are left to it."""

import torch

from quire.kernels.cpu.native import dtype_code, native
from quire.kernels.linear.norm import add_rms_norm_reference, rms_norm_reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See kernels/linear/norm.py."""
    if weight.dtype != x.dtype:
        return rms_norm_reference(x, weight, eps)
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    native().quire_rms_norm(
        dtype_code("x", x),
        x.data_ptr(),
        weight.contiguous().data_ptr(),
        out.data_ptr(),
        x.numel() // width,
        width,
        eps,
        torch.get_num_threads(),
    )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/linear/norm.py."""
    if weight.dtype != x.dtype:
        return add_rms_norm_reference(x, residual, weight, eps)
    x, residual = x.contiguous(), residual.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    native().quire_add_rms_norm(
        dtype_code("x", x),
        x.data_ptr(),
        residual.data_ptr(),
        weight.contiguous().data_ptr(),
        normed.data_ptr(),
        total.data_ptr(),
        x.numel() // width,
        width,
        eps,
        torch.get_num_threads(),
    )
    return normed, total
