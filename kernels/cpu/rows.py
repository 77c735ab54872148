"""Rows element by element for CPUs: native calls, which a tape can note."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """See kernels/rows.py."""
    rows, width = x.shape
    out = torch.empty_like(x)
    native().quire_scale(dtype_code("x", x), x.data_ptr(), factor, out.data_ptr(), rows, width, torch.get_num_threads())
    return out


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See kernels/rows.py."""
    rows, width = x.shape
    out = torch.empty_like(x)
    native().quire_add(
        dtype_code("x", x),
        x.data_ptr(),
        y.data_ptr(),
        width if y.ndim == 2 else 0,
        out.data_ptr(),
        rows,
        width,
        torch.get_num_threads(),
    )
    return out


def widen(x: torch.Tensor) -> torch.Tensor:
    """See kernels/rows.py."""
    rows, width = x.shape
    out = x.new_empty((rows, width), dtype=torch.float32)
    native().quire_widen(dtype_code("x", x), x.data_ptr(), out.data_ptr(), rows, width, torch.get_num_threads())
    return out
