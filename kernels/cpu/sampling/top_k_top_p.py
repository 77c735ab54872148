"""Truncation with numpy's vectorised sort, row by row: what one row needs stays in the cache."""

import torch

from quire.kernels.sampling.top_k_top_p import least_kept, truncated_rows


def top_k_top_p(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """See `quire.kernels.sampling.top_k_top_p.top_k_top_p_reference`."""
    floor = torch.full((logits.shape[0],), -torch.inf)
    for row in truncated_rows(logits, temperature, top_k, top_p, min_p).tolist():
        one = slice(row, row + 1)
        falling = logits[one].float().neg()
        falling.numpy().sort(axis=-1)  # numpy sorts upward only
        floor[one] = least_kept(falling.neg_(), temperature[one], top_k[one], top_p[one], min_p[one])
    return floor
