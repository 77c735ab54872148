"""Rows times a factor: embeddings of tokens, in the models that scale them."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def scale_reference(x: torch.Tensor, factor: float) -> torch.Tensor:
    """`factor * x` in float32, rounded once: x [T, D] -> [T, D]."""
    return x * factor


def _check(x: torch.Tensor, factor: float) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_contiguous(x=x)


# a GPU records torch's own operation in its graphs
scale = Operation(scale_reference, _check, {"cpu": "quire.kernels.cpu.scale:scale"})
