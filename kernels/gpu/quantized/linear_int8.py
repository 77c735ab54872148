"""Linear layers on 8-bit integers on a GPU: few tokens by a product of our own, many by torch's.

The weight is its integers as the file holds them, [O, I]. Every GPU served has matrix instructions for them.
"""

import torch

from quire.kernels.gpu.quantized.product_int8 import SCALE_BLOCK, product_int8, scale_int8_sums
from quire.kernels.gpu.quantized.quantize_f8 import Norm
from quire.kernels.gpu.quantized.quantize_int8 import quantize_int8
from quire.kernels.linear.activation import Gate, gated_activation

MOST_TOKENS = 64
"""Tokens of a product of our own, where torch has one."""
ALIGNED = 8
"""Inputs and outputs that torch's product takes are multiples of it."""
LEAST_PIECE = 32
"""Tokens of a piece at least: torch's product takes no fewer than 17."""
SUM_BYTES = 64 << 20
"""Sums that are in memory at once: they take twice the bytes of a result of 16 bits."""


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels/linear/linear_int8.py`: integers [O, I]. A row at a time, with no memory for steps in between."""
    integers, scale, _ = quantize_int8(weight)
    return integers, scale


def pack_integers(integers: torch.Tensor) -> torch.Tensor:
    """See `kernels/linear/linear_int8.py`: what is in the file is what is multiplied."""
    return integers


def linear_int8(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See `kernels/linear/linear_int8.py`."""
    integers, row_scale, _ = quantize_int8(x)
    return _product(integers, row_scale, weight, scale, bias, x.dtype)


def norm_linear_int8(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels/linear/linear_int8.py`."""
    integers, row_scale, total = quantize_int8(x, Norm(residual, norm_weight, eps))
    wide = _product(integers, row_scale, weight, scale, bias, x.dtype)
    return (wide if gate is None else gated_activation(wide, gate)), total


def gated_linear_int8(
    x: torch.Tensor, kind: Gate, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """See `kernels/linear/linear_int8.py`."""
    integers, row_scale, _ = quantize_int8(x, gate=kind)
    return _product(integers, row_scale, weight, scale, bias, x.dtype)


def _product(
    integers: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The product of integers: torch's where there are many and it has one."""
    (num_tokens, size_in), size_out = integers.shape, weight.shape[0]
    if num_tokens <= MOST_TOKENS or size_in % ALIGNED or size_out % ALIGNED:
        return product_int8(integers, row_scale, weight, scale, bias, dtype)
    return torch_product(integers, row_scale, weight, scale, bias, dtype)


def torch_product(
    integers: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """cuBLAS's product of 8-bit integers, whose sums are scaled in a second launch; in pieces of tokens."""
    num_tokens, size_out = integers.shape[0], weight.shape[0]
    out = integers.new_empty((num_tokens, size_out), dtype=dtype)
    pieces = min(-(-num_tokens * size_out * 4 // SUM_BYTES), num_tokens // LEAST_PIECE)
    columns = weight.t()
    for piece in zip(*(whole.tensor_split(pieces) for whole in (integers, row_scale, out)), strict=True):
        of_piece, scales, results = piece
        scale_int8_sums(torch._int_mm(of_piece, columns)[None], scales, scale, bias, results, SCALE_BLOCK)
    return out
