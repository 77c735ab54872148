"""Truncation with numpy's vectorised sort: many times faster than torch's on the CPU."""

import torch

from quire.kernels.cut import cut_rows, least_kept


def cut(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    floor = torch.full((logits.shape[0],), -torch.inf)
    rows = cut_rows(logits, temperature, top_k, top_p, min_p)
    if len(rows):
        falling = logits[rows].float().neg_()
        falling.numpy().sort(axis=-1)  # numpy sorts upward only
        floor[rows] = least_kept(falling.neg_(), temperature[rows], top_k[rows], top_p[rows], min_p[rows])
    return floor
