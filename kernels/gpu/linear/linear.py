"""Linear layers on a GPU: few tokens in launches of our own, many with cuBLAS and launches for norm and activation.

Floor: (O * I + T * (I + O)) * itemsize bytes, 2 * T * O * I operations; the norm and gate around cuBLAS add two passes.
"""

import functools

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.gpu.linear.norm_before import Norm
from quire.kernels.gpu.linear.tiles import CUBLAS, MOST_TOKENS, linear_shape_key, vector_tiles
from quire.kernels.gpu.linear.vector_linear import vector_linear
from quire.kernels.gpu.tile_table import Tiles, tile
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.norm import add_rms_norm, rms_norm


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See `kernels/linear/linear.py`."""
    return linear_by(x, weight, bias, _tiles(x, weight, None))


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
    return norm_linear_by(x, residual, norm_weight, eps, weight, bias, gate, _tiles(x, weight, gate, "norm_linear"))


def linear_by(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tiles: Tiles) -> torch.Tensor:
    """`linear` by given tiles: cuBLAS or our kernel."""
    return torch_linear(x, weight, bias) if tiles["cublas"] else vector_linear(x, weight, bias, None, tiles)


def norm_linear_by(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    tiles: Tiles,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`norm_linear` by given tiles: cuBLAS or our kernel."""
    # x * norm_weight before its division by the root mean square may leave the range of float16, not of bfloat16
    if not tiles["cublas"] and x.dtype != torch.float16:
        total = x if residual is None else x.new_empty(x.shape)
        norm = Norm(residual, norm_weight, eps, total)
        return vector_linear(x, weight, bias, gate, tiles, norm), total
    if residual is None:
        normed, total = rms_norm(x, norm_weight, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm_weight, eps)
    wide = linear_by(normed, weight, bias, tiles)
    return wide if gate is None else gated_activation(wide, gate), total


def _tiles(x: torch.Tensor, weight: torch.Tensor, gate: Gate | None, operation: str = "linear") -> Tiles:
    if x.shape[0] > MOST_TOKENS or x.dtype not in (torch.bfloat16, torch.float16):
        return CUBLAS
    return tiles_for(operation, x.shape[0], x.shape[1], weight.shape[0], x.dtype, gate is not None)


@functools.cache
def tiles_for(
    operation: str, num_tokens: int, size_in: int, size_out: int, dtype: torch.dtype, is_gated: bool
) -> Tiles:
    """The tiles of a layer of at most 4 tokens, by the device's table; looked up once."""
    shape = linear_shape_key(num_tokens, size_in, size_out, dtype, is_gated)
    return tile(operation, shape, vector_tiles(num_tokens, operation == "norm_linear"))
