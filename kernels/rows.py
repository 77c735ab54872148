"""Rows element by element: scaled, added, widened."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def scale_reference(x: torch.Tensor, factor: float) -> torch.Tensor:
    """`factor * x` in float32, rounded once: x [T, D] -> [T, D]."""
    return x * factor


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`x + y` in float32, rounded once: x [T, D], y [T, D] or [D] -> [T, D]."""
    return x + y


def widen_reference(x: torch.Tensor) -> torch.Tensor:
    """x [T, D] -> float32 [T, D], for layers that are more exact than the model."""
    return x.float()


def _check_rows(x: torch.Tensor) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_contiguous(x=x)


def _check_scale(x: torch.Tensor, factor: float) -> None:
    _check_rows(x)


def _check_add(x: torch.Tensor, y: torch.Tensor) -> None:
    _check_rows(x)
    check_tensor("y", y, tuple(x.shape)[-y.ndim :], (x.dtype,), x.device)
    check_contiguous(y=y)


# a GPU records torch's own operations in its graphs
scale = Operation(scale_reference, _check_scale, {"cpu": "quire.kernels.cpu.rows:scale"})
add = Operation(add_reference, _check_add, {"cpu": "quire.kernels.cpu.rows:add"})
widen = Operation(widen_reference, _check_rows, {"cpu": "quire.kernels.cpu.rows:widen"})
