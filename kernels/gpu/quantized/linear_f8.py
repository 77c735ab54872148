"""Linear layers on 8-bit floats on a GPU: few tokens by a product of our own, many by torch's with scales of rows.

The weight is its codes as the file holds them, [O, I]. A chip without 8-bit floats (before 8.9) multiplies activations
as they are, whatever the checkpoint says of them: rounding them would save it nothing.
"""

import torch

from quire.kernels.gpu.chip import chip_of, has_eight_bits
from quire.kernels.gpu.quantized.product_f8 import product_f8
from quire.kernels.gpu.quantized.quantize_f8 import Norm, quantize_f8
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.linear_f8 import Activations
from quire.kernels.linear.norm import add_rms_norm, rms_norm

MOST_TOKENS = 64
"""Tokens of a product of our own, where torch has one."""
ALIGNED = 16
"""Inputs and outputs that torch's product takes are multiples of it."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """See `kernels/linear/linear_f8.py`: what is in the file is what is multiplied."""
    return weight


def linear_f8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """See `kernels/linear/linear_f8.py`."""
    if are_rounded(x, activations):
        codes, row_scale, _ = quantize_f8(x, input_scale)
        return _product(codes, row_scale, weight, scale, bias, x.dtype)
    return product_f8(x, None, weight, scale, bias, x.dtype)


def norm_linear_f8(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels/linear/linear_f8.py`."""
    if are_rounded(x, activations):
        codes, row_scale, total = quantize_f8(x, input_scale, Norm(residual, norm_weight, eps))
        wide = _product(codes, row_scale, weight, scale, bias, x.dtype)
    else:
        rows, total = normed(x, residual, norm_weight, eps)
        wide = product_f8(rows, None, weight, scale, bias, x.dtype)
    return (wide if gate is None else gated_activation(wide, gate)), total


def gated_linear_f8(
    x: torch.Tensor,
    kind: Gate,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """See `kernels/linear/linear_f8.py`."""
    if are_rounded(x, activations):
        codes, row_scale, _ = quantize_f8(x, input_scale, gate=kind)
        return _product(codes, row_scale, weight, scale, bias, x.dtype)
    return product_f8(gated_activation(x, kind), None, weight, scale, bias, x.dtype)


def normed(
    x: torch.Tensor, residual: torch.Tensor | None, norm_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of residual + x in a launch of its own, and that sum: x itself without a residual."""
    if residual is None:
        return rms_norm(x, norm_weight, eps), x
    return add_rms_norm(x, residual, norm_weight, eps)


def are_rounded(x: torch.Tensor, activations: str) -> bool:
    """True where x becomes codes before it is multiplied."""
    return activations != "none" and has_eight_bits(chip_of(x.device).capability)


def _product(
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The product of codes: torch's where there are many and it has one, which gives bfloat16."""
    (num_tokens, size_in), size_out = codes.shape, weight.shape[0]
    if num_tokens <= MOST_TOKENS or dtype != torch.bfloat16 or size_in % ALIGNED or size_out % ALIGNED:
        return product_f8(codes, row_scale, weight, scale, bias, dtype)
    return torch_product(codes, row_scale, weight, scale, bias)


def torch_product(
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """cuBLAS's product of 8-bit floats, or CUTLASS's, with sums in float32."""
    return torch._scaled_mm(
        codes,
        weight.t(),
        row_scale[:, None],
        scale[None, :],
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
