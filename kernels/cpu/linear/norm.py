"""RMS norms for CPUs: one pass over memory, the same rounding as the reference."""

from math import prod

import torch

from quire.kernels.cpu.native import dtype_code, native


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See kernels/linear/norm.py."""
    library = native()
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    rows, *parts = x.shape[:-1] or (1,)  # of a step's tokens, a tape notes the number
    (library.quire_rms_norm if weight.dtype is x.dtype else library.quire_rms_norm_wide)(
        dtype_code("x", x),
        x.data_ptr(),
        weight.contiguous().data_ptr(),
        out.data_ptr(),
        rows,
        prod(parts),
        width,
        eps,
        torch.get_num_threads(),
    )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/linear/norm.py."""
    library = native()
    x, residual = x.contiguous(), residual.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    (library.quire_add_rms_norm if weight.dtype is x.dtype else library.quire_add_rms_norm_wide)(
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
