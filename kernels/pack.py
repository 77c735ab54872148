"""A weight as the linear layers of its device like it best: made once, when the weight is complete."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def pack_reference(weight: torch.Tensor) -> torch.Tensor:
    """weight [O, I] -> what `linear` and `norm_linear` take in its place: of the same shape and dtype, maybe opaque.

    The weight itself where the device multiplies it as it is.
    """
    return weight


def _check(weight: torch.Tensor) -> None:
    check_tensor("weight", weight, (None, None), FLOATS, weight.device)
    check_contiguous(weight=weight)


pack = Operation(pack_reference, _check, {"cpu": "quire.kernels.cpu.linear:pack"})
