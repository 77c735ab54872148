"""A weight as the linear layers of its device like it best: made once, when the weight is complete."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation

BLOCK = 16
"""Outputs that lie together in a blocked weight."""


def pack_reference(weight: torch.Tensor) -> torch.Tensor:
    """weight [O, I] -> what `linear` and `norm_linear` take in its place, of the same dtype and size.

    The weight itself where the device multiplies it as it is; else opaque [O, I], or blocked [O / 16, I, 16].
    """
    return weight


def num_outputs(weight: torch.Tensor) -> int:
    """O, of a weight in any of these forms."""
    return weight.shape[0] * (BLOCK if weight.dim() == 3 else 1)


def unpack(weight: torch.Tensor) -> torch.Tensor:
    """The plain weight [O, I] again."""
    if weight.dim() == 3:
        return weight.transpose(1, 2).flatten(0, 1)
    return weight.to_dense() if weight.is_mkldnn else weight


def _check(weight: torch.Tensor) -> None:
    check_tensor("weight", weight, (None, None), FLOATS, weight.device)
    check_contiguous(weight=weight)


pack = Operation(pack_reference, _check, {"cpu": "quire.kernels.cpu.linear:pack"})
