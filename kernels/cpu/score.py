"""Reading rows of logits on the CPU: numpy searches and counts them ten times faster than torch."""

import numpy as np
import torch

from quire.kernels.score import finite_rows_reference


def score(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.score.score_reference`."""
    logits = logits.float()
    values = logits.gather(1, token_ids)
    ranks = torch.empty_like(token_ids)
    for row, line, wanted in zip(logits.numpy(), ranks, values.numpy(), strict=True):
        line.copy_(torch.tensor([np.count_nonzero(row > value) + 1 for value in wanted]))
    return values - logits.logsumexp(dim=-1, keepdim=True), ranks


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.score.best_reference`."""
    token_ids = argmax(logits)
    value = logits.gather(1, token_ids[:, None]).squeeze(1).float()
    return value.masked_fill_(~finite_rows_reference(logits), torch.nan), token_ids


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """int64 [S]: the lowest id among the greatest of each row; that of a NaN where there is one."""
    return torch.from_numpy(logits.float().numpy().argmax(axis=-1))
