"""Trials of `quire bench tune` for the norm."""

import functools
from collections.abc import Callable, Iterator

import torch

from quire.kernels.gpu.linear.norm import launch
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial


def trials() -> Iterator[Trial]:
    """The norm with addition over 4096 tokens of hidden sizes people serve."""
    for size in (2048, 4096, 8192):
        yield Trial(
            "norm",
            f"d{size} {torch.bfloat16}",
            tuple({"rows": rows, "num_warps": num_warps} for rows in (1, 2, 4) for num_warps in (4, 8, 16)),
            4 * 2 * 4096 * size,
            functools.partial(_trial, size),
        )


def _trial(size: int, device: torch.device) -> Callable[[Tiles], object]:
    x, residual, normed, total = torch.randn((4, 4096, size), device=device).to(torch.bfloat16)
    weight = torch.ones(size, device=device, dtype=torch.bfloat16)
    return lambda tiles: launch(x, residual, weight, normed, total, 1e-5, tiles)
