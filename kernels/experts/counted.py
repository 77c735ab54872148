"""Weights of tokens' experts beside the scores: factors that experts have, and weights that inputs take.

Shape legend: T tokens, k experts of each, H hidden size.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def scale_weights_reference(weights: torch.Tensor, ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Weights float32 [T, k] times the factors [experts] of their experts, int32 [T, k]; 0 where there is none."""
    return torch.where(ids < 0, 0.0, weights * factors[ids.clamp(min=0).long()].float())


def count_inputs_reference(x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, H] times what its one expert counts, float32 [T, 1], rounded to x's dtype first; and what it counts then.

    That is 1: [T, 1].
    """
    return x * weights.to(x.dtype), torch.ones_like(weights)


def _check_weights(weights: torch.Tensor, ids: torch.Tensor, factors: torch.Tensor) -> None:
    check_tensor("weights", weights, (None, None), (torch.float32,), weights.device)
    check_tensor("ids", ids, tuple(weights.shape), (torch.int32,), weights.device)
    check_tensor("factors", factors, (None,), FLOATS, weights.device)
    check_contiguous(weights=weights, ids=ids, factors=factors)


def _check_inputs(x: torch.Tensor, weights: torch.Tensor) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("weights", weights, (x.shape[0], 1), (torch.float32,), x.device)
    check_contiguous(x=x, weights=weights)


# a GPU records torch's own operations in its graphs
scale_weights = Operation(
    scale_weights_reference, _check_weights, {"cpu": "quire.kernels.cpu.experts.counted:scale_weights"}
)
count_inputs = Operation(
    count_inputs_reference, _check_inputs, {"cpu": "quire.kernels.cpu.experts.counted:count_inputs"}
)
