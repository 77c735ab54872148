"""Rows times a factor for CPUs."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """See kernels/scale.py."""
    rows, width = x.shape
    out = torch.empty_like(x)
    native().quire_scale(dtype_code("x", x), x.data_ptr(), factor, out.data_ptr(), rows, width, torch.get_num_threads())
    return out
