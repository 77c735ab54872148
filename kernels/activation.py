"""The gated activation of the feed-forward block (Shazeer, 2020)."""

import torch
from torch.nn.functional import silu

from quire.kernels.checks import FLOATS, check_tensor
from quire.kernels.dispatch import Operation


def silu_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of the two halves of the last dimension: x [T, 2 * D] -> [T, D]."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


def _check(x: torch.Tensor) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    if x.shape[1] % 2:
        raise ValueError(f"x: the last dimension holds gate and up, so it must be even, got {x.shape[1]}")


silu_mul = Operation(silu_mul_reference, _check)
