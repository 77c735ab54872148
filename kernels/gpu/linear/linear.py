"""Linear layers on a GPU: few tokens in launches of our own, many with cuBLAS and launches for norm and activation.

Floor: (O * I + T * (I + O)) * itemsize bytes, 2 * T * O * I operations; the norm and gate around cuBLAS add two passes.
"""

import functools
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.gpu.linear.skinny_linear import MOST_TOKENS, Norm, default_tiles, skinny_linear
from quire.kernels.gpu.tuning.tiles import Tiles, Trial, tile
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.norm import add_rms_norm, rms_norm

_CUBLAS: Tiles = {"cublas": 1}


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See `kernels/linear/linear.py`."""
    return _linear(x, weight, bias, None, _tiles(x, weight, None))


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels/linear/linear.py`."""
    return _norm_linear(x, residual, norm_weight, eps, weight, bias, gate, _tiles(x, weight, gate, "norm_linear"))


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gate: Gate | None, tiles: Tiles
) -> torch.Tensor:
    if not tiles["cublas"]:
        return skinny_linear(x, weight, bias, gate, tiles)
    wide = torch_linear(x, weight, bias)
    return wide if gate is None else gated_activation(wide, gate)


def _norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    tiles: Tiles,
) -> tuple[torch.Tensor, torch.Tensor]:
    # x * norm_weight before its division by the root mean square may leave the range of float16, not of bfloat16
    if not tiles["cublas"] and x.dtype != torch.float16:
        total = x if residual is None else x.new_empty(x.shape)
        norm = Norm(residual, norm_weight, eps, total)
        return skinny_linear(x, weight, bias, gate, tiles, norm), total
    if residual is None:
        normed, total = rms_norm(x, norm_weight, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm_weight, eps)
    return _linear(normed, weight, bias, gate, tiles), total


def _tiles(x: torch.Tensor, weight: torch.Tensor, gate: Gate | None, operation: str = "linear") -> Tiles:
    if x.shape[0] > MOST_TOKENS or x.dtype not in (torch.bfloat16, torch.float16):
        return _CUBLAS
    return tiles_for(operation, x.shape[0], x.shape[1], weight.shape[0], x.dtype, gate is not None)


@functools.cache
def tiles_for(
    operation: str, num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype, is_gated: bool
) -> Tiles:
    """The tiles of a layer of at most 16 tokens, by the device's table; looked up once."""
    shape = shape_key(num_tokens, size_in, size_out, dtype, is_gated)
    return tile(operation, shape, default_tiles(num_tokens, size_in, size_out))


def shape_key(num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype, is_gated: bool) -> str:
    """`t4 4096 -> 28672 bfloat16 gated`; tokens are rounded up to a power of two."""
    tokens = 1 << (num_tokens - 1).bit_length() if num_tokens else 1
    name = str(dtype).removeprefix("torch.")
    return f"t{tokens} {size_in} -> {size_out} {name}{' gated' if is_gated else ''}"


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

# Rows and columns of a tile, parts, warps, stages: all within the 99 KB of shared memory of the smallest chip.
_CANDIDATES = (
    (64, 64, 1, 4, 4),
    (64, 64, 1, 4, 6),
    (64, 64, 2, 4, 5),
    (64, 64, 4, 4, 5),
    (64, 128, 1, 8, 4),
    (64, 128, 2, 8, 4),
    (128, 64, 1, 4, 4),
    (32, 128, 1, 4, 4),
    (32, 128, 1, 4, 6),
    (32, 128, 2, 4, 6),
    (32, 256, 1, 8, 4),
    (32, 256, 2, 8, 4),
    (16, 128, 1, 4, 6),
    (16, 256, 1, 4, 4),
    (16, 256, 2, 8, 4),
)


def trials() -> Iterator[Trial]:
    """Every layer at 1, 4, 8 and 16 tokens in bfloat16."""
    names = ("block_o", "block_i", "parts", "num_warps", "num_stages")
    ours = tuple({"cublas": 0, **dict(zip(names, sizes, strict=True))} for sizes in _CANDIDATES)
    for operation, size_in, size_out, gate in _LAYERS:
        for num_tokens in (1, 4, 8, 16):
            yield Trial(
                operation,
                shape_key(num_tokens, size_in, size_out, torch.bfloat16, gate is not None),
                (default_tiles(num_tokens, size_in, size_out), *ours, _CUBLAS),
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
        return lambda tiles: _linear(x, weight, None, gate, tiles)
    return lambda tiles: _norm_linear(x, residual, norm_weight, 1e-5, weight, None, gate, tiles)
