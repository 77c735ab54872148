"""Masks of allowed tokens on CPUs: a table turns every octet of a mask into eight addends."""

import functools

import torch


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """`kernels.penalize.mask_tokens`."""
    octets = bitmask.view(torch.uint8).reshape(-1).int()
    addends = _addends().index_select(0, octets).view(len(rows), -1)
    logits.index_add_(0, rows, addends[:, : logits.shape[1]])


@functools.cache
def _addends() -> torch.Tensor:
    """float32 [256, 8]: 0 where the bit is set, -inf where not."""
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    return torch.where(bits == 1, 0.0, -torch.inf)
