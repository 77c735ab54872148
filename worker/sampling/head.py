"""The output head of a model, as what samples from it sees it."""

from typing import Protocol

import torch


class Head(Protocol):
    """Logits of hidden states, or their maxima alone."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab] in any float, complete and equal on every rank."""
        ...

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Likeliest ids int64 [S], and whether each row's logits are finite, bool [S]; equal on every rank."""
        ...
