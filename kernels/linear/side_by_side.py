"""Matrices side by side: the outputs of products that were made apart."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def side_by_side_reference(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Matrices [T, O1], [T, O2], ... of one dtype -> [T, O1 + O2 + ...]."""
    return torch.cat((first, *others), 1)


def _check(first: torch.Tensor, *others: torch.Tensor) -> None:
    check_tensor("first", first, (None, None), FLOATS, first.device)
    for number, one in enumerate(others):
        check_tensor(f"others[{number}]", one, (first.shape[0], None), (first.dtype,), first.device)
        check_contiguous(**{f"others[{number}]": one})
    check_contiguous(first=first)


side_by_side = Operation(side_by_side_reference, _check, {"cpu": "quire.kernels.cpu.linear.side_by_side:side_by_side"})
