"""Trials of `quire bench tune` for the linear layers of few tokens."""

import functools
from collections.abc import Callable, Iterator

import torch

from quire.kernels.gpu.linear.linear import linear_by, norm_linear_by
from quire.kernels.gpu.linear.tiles import CUBLAS, linear_shape_key, vector_tiles
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial
from quire.kernels.linear.activation import Gate

_LAYERS: tuple[tuple[str, int, int, Gate | None], ...] = (
    ("norm_linear", 4096, 6144, None),
    ("linear", 4096, 4096, None),
    ("norm_linear", 4096, 28672, "silu"),
    ("linear", 14336, 4096, None),
    ("norm_linear", 4096, 24576, "silu"),
    ("linear", 12288, 4096, None),
    ("linear", 4096, 128256, None),
    ("linear", 4096, 151936, None),
)
"""Operation, input and output size, gate: the layers and heads of Llama-3.1-8B and Qwen3-8B."""

_CANDIDATES = (
    (4, 1024, 4),
    (8, 1024, 4),
    (8, 512, 2),
    (16, 512, 2),
    (4, 2048, 4),
    (8, 2048, 8),
    (2, 1024, 4),
    (2, 2048, 4),
    (4, 512, 2),
    (1, 2048, 4),
    (16, 256, 1),
    (8, 256, 1),
)
"""Rows and columns of a tile, and warps."""


def trials() -> Iterator[Trial]:
    """Every layer at 1, 2 and 4 tokens in bfloat16."""
    names = ("block_o", "block_i", "num_warps")
    ours = tuple({"cublas": 0, **dict(zip(names, sizes, strict=True))} for sizes in _CANDIDATES)
    for operation, size_in, size_out, gate in _LAYERS:
        for num_tokens in (1, 2, 4):
            yield Trial(
                operation,
                linear_shape_key(num_tokens, size_in, size_out, torch.bfloat16, gate is not None),
                tuple(
                    {
                        str(one): one for one in (vector_tiles(num_tokens, operation == "norm_linear"), *ours, CUBLAS)
                    }.values()
                ),
                2 * (size_in * size_out + num_tokens * (size_in + size_out)),
                functools.partial(prepare, operation, num_tokens, size_in, size_out, gate),
            )


def prepare(
    operation: str, num_tokens: int, size_in: int, size_out: int, gate: Gate | None, device: torch.device
) -> Callable[[Tiles], object]:
    """Random arguments of a layer on `device`; a launch of it with given tiles."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    x, residual, norm_weight = random(num_tokens, size_in), random(num_tokens, size_in), random(size_in)
    weight = random(size_out, size_in)
    if operation == "linear":
        return lambda tiles: linear_by(x, weight, None, tiles)
    return lambda tiles: norm_linear_by(x, residual, norm_weight, 1e-5, weight, None, gate, tiles)
