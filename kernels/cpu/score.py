"""Reading rows of logits on the CPU: numpy searches and counts them ten times faster than torch."""

import numpy as np
import torch


def score(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.sampling.score.score_reference`."""
    logits = logits.float()
    values = logits.gather(1, token_ids)
    ranks = torch.empty_like(token_ids)
    for row, line, wanted in zip(logits.numpy(), ranks, values.numpy(), strict=True):
        line.copy_(torch.tensor([np.count_nonzero(row > value) + 1 for value in wanted]))
    return values - logits.logsumexp(dim=-1, keepdim=True), ranks


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.sampling.score.best_reference`."""
    rows = logits.float().numpy()
    token_ids = rows.argmax(axis=-1)
    value = np.take_along_axis(rows, token_ids[:, None], axis=-1)[:, 0]
    value[~(np.isfinite(value) & np.isfinite(rows.min(axis=-1)))] = np.nan
    return torch.from_numpy(value), torch.from_numpy(token_ids)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """int64 [S]: the lowest id among the greatest of each row; that of a NaN where there is one."""
    return torch.from_numpy(logits.float().numpy().argmax(axis=-1))
