"""Linear layers on 8-bit floats in blocks on a GPU: few tokens by a product of our own, many on Hopper by cuBLAS's.

The weight is its codes as the file holds them, [O, I]. A chip without 8-bit floats (before 8.9) multiplies activations
as they are, as `linear_f8` does.
"""

import torch
from torch.nn import functional

from quire.kernels.gpu.chip import chip_of
from quire.kernels.gpu.quantized.linear_f8 import MOST_TOKENS, are_rounded, normed
from quire.kernels.gpu.quantized.product_f8_blocks import product_f8_blocks
from quire.kernels.gpu.quantized.quantize_f8 import Norm
from quire.kernels.gpu.quantized.quantize_f8_blocks import quantize_f8_blocks
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.linear_f8 import Activations
from quire.kernels.linear.linear_f8_blocks import SIDE

HOPPER = 90
"""The one capability for which cuBLAS has the product."""
LEAST_CUDA = (12, 9)
"""The first CUDA whose cuBLAS has it."""
ALIGNED = 4
"""Blocks of inputs whose scales cuBLAS reads at once."""


def linear_f8_blocks(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, activations: Activations
) -> torch.Tensor:
    """See `kernels/linear/linear_f8_blocks.py`."""
    if are_rounded(x, activations):
        codes, row_scale, _ = quantize_f8_blocks(x)
        return _product(codes, row_scale, weight, scale, bias, x)
    return product_f8_blocks(x, None, weight, scale, bias, x.dtype)


def norm_linear_f8_blocks(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    activations: Activations,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels/linear/linear_f8_blocks.py`."""
    if are_rounded(x, activations):
        codes, row_scale, total = quantize_f8_blocks(x, Norm(residual, norm_weight, eps))
        wide = _product(codes, row_scale, weight, scale, bias, x)
    else:
        rows, total = normed(x, residual, norm_weight, eps)
        wide = product_f8_blocks(rows, None, weight, scale, bias, x.dtype)
    return (wide if gate is None else gated_activation(wide, gate)), total


def gated_linear_f8_blocks(
    x: torch.Tensor,
    kind: Gate,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
) -> torch.Tensor:
    """See `kernels/linear/linear_f8_blocks.py`."""
    if are_rounded(x, activations):
        codes, row_scale, _ = quantize_f8_blocks(x, gate=kind)
        return _product(codes, row_scale, weight, scale, bias, x)
    return product_f8_blocks(gated_activation(x, kind), None, weight, scale, bias, x.dtype)


def _product(
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    x: torch.Tensor,
) -> torch.Tensor:
    """The product of what became of x: torch's where there are many tokens and it has one, which gives bfloat16."""
    num_tokens = x.shape[0]
    is_whole = codes.shape[1] % SIDE == 0 and weight.shape[0] % SIDE == 0
    if num_tokens > MOST_TOKENS and x.dtype == torch.bfloat16 and is_whole and has_product(x.device):
        out = torch_product(codes, row_scale, weight, scale)[:num_tokens]
        return out if bias is None else out.add_(bias)  # behind the product, which is not known to take one
    return product_f8_blocks(codes[:num_tokens], row_scale, weight, scale, bias, x.dtype)


def has_product(device: torch.device) -> bool:
    """True where torch multiplies blocks: on Hopper alone, and with cuBLAS of CUDA 12.9 at least."""
    if chip_of(device).capability != HOPPER or torch.version.cuda is None:
        return False
    return tuple(int(number) for number in torch.version.cuda.split(".")[:2]) >= LEAST_CUDA


def torch_product(
    codes: torch.Tensor, row_scale: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """cuBLAS's product of 1 x 128 by 128 x 128: codes [R, I] by [O, I], R a multiple of 4, I and O of 128.

    Scales of tokens lie block by block of the inputs, those of the weight output by output, each made up to a multiple
    of 4 blocks of inputs.
    """
    if missing := -scale.shape[1] % ALIGNED:
        scale = functional.pad(scale, (0, missing))
    return functional.scaled_mm(
        codes,
        weight.t(),
        row_scale.t(),
        functional.ScalingType.BlockWise1x128,
        scale.t(),
        functional.ScalingType.BlockWise128x128,
        output_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
