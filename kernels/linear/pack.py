"""A weight as the linear layers of its device like it best: made once, when the weight is complete."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation

BLOCK = 16
"""Outputs that lie together in a blocked weight."""
PAIR = 2
"""Inputs of one output that lie together in a blocked weight of bfloat16."""


def pack_reference(weight: torch.Tensor) -> torch.Tensor:
    """weight [O, I] -> what `linear` and `norm_linear` take in its place, of the same dtype and size.

    The weight itself where the device multiplies it as it is; else opaque [O, I], or blocked: [O / 16, I, 16], in
    bfloat16 [O / 16, I / 2, 16, 2].
    """
    return weight


def is_blocked(weight: torch.Tensor) -> bool:
    """True of the blocked forms."""
    return weight.dim() > 2


def num_outputs(weight: torch.Tensor) -> int:
    """O, of a weight in any of these forms."""
    return weight.shape[0] * (BLOCK if is_blocked(weight) else 1)


def rows_of(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows [T, I] of the plain weight, of one that is blocked; indices int64 [T]. By numpy, twice as fast as torch."""
    lanes, ids = weight.view(torch.int32).view(*weight.shape[:2], BLOCK).numpy(), indices.numpy()
    return torch.from_numpy(lanes[ids // BLOCK, :, ids % BLOCK]).view(weight.dtype)


def unpack(weight: torch.Tensor) -> torch.Tensor:
    """The plain weight [O, I] again."""
    if is_blocked(weight):
        return weight.transpose(1, 2).flatten(2).flatten(0, 1)
    return weight.to_dense() if weight.is_mkldnn else weight


def _check(weight: torch.Tensor) -> None:
    check_tensor("weight", weight, (None, None), FLOATS, weight.device)
    check_contiguous(weight=weight)


pack = Operation(pack_reference, _check, {"cpu": "quire.kernels.cpu.linear.linear:pack"})
