"""Trials of `quire bench tune` for the gated activation."""

import functools
from collections.abc import Callable, Iterator

import torch

from quire.kernels.gpu.linear.activation import launch
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial


def trials() -> Iterator[Trial]:
    """silu over 4096 tokens of Llama-3.1-8B's and Qwen3-8B's feed-forward sizes."""
    for size in (12288, 14336):
        yield Trial(
            "gated_activation",
            f"d{size} {torch.bfloat16}",
            tuple({"block": block, "num_warps": warps} for block in (512, 1024, 2048, 4096) for warps in (2, 4, 8)),
            3 * 2 * 4096 * size,
            functools.partial(_trial, size),
        )


def _trial(size: int, device: torch.device) -> Callable[[Tiles], object]:
    x = torch.randn((4096, 2 * size), device=device).to(torch.bfloat16)
    out = x.new_empty((4096, size))
    return lambda tiles: launch(x, "silu", out, tiles)
