"""The norm that a launch of a linear layer applies before the weights."""

from typing import NamedTuple

import torch


class Norm(NamedTuple):
    """The norm that the launch applies to x before the weights; with a residual x's sum with it, into `total`."""

    residual: torch.Tensor | None
    weight: torch.Tensor
    eps: float
    total: torch.Tensor
