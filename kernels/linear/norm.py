"""Root-mean-square normalisation (Zhang and Sennrich, 2019), alone and fused with the residual addition."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension: x [..., D], weight [D] -> [..., D].

    The mean is taken in float32; the product with the weight in x's dtype, as the published models were trained. With a
    weight in float32 beside x in 16 bits it is taken in float32, too, and rounded once.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * normed.to(weight.dtype)).to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + x`, and its norm: (normed, sum), both like x [..., D]. The sum is rounded to x's dtype first."""
    total = residual + x
    return rms_norm_reference(total, weight, eps), total


def residual_norm_reference(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of total, and total: residual + x, or without a residual x itself."""
    if residual is None:
        return rms_norm_reference(x, weight, eps), x
    return add_rms_norm_reference(x, residual, weight, eps)


def check_residual_norm(x: torch.Tensor, residual: torch.Tensor | None, norm_weight: torch.Tensor, eps: float) -> None:
    """Raise ValueError unless these are arguments of a norm before a product; x itself is sound."""
    check_tensor("norm_weight", norm_weight, (x.shape[1],), (x.dtype,), x.device)
    check_contiguous(norm_weight=norm_weight)
    if eps <= 0.0:
        raise ValueError(f"eps: must be positive, got {eps}")
    if residual is not None:
        check_tensor("residual", residual, tuple(x.shape), (x.dtype,), x.device)
        check_contiguous(residual=residual)


def _check_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    check_tensor("x", x, (*x.shape[:-1], weight.shape[-1]), FLOATS, x.device)
    check_tensor("weight", weight, (x.shape[-1],), (x.dtype, torch.float32), x.device)
    check_contiguous(x=x, weight=weight)
    if eps <= 0.0:
        raise ValueError(f"eps: must be positive, got {eps}")


def _check_add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    _check_norm(x, weight, eps)
    check_tensor("residual", residual, tuple(x.shape), (x.dtype,), x.device)
    check_contiguous(residual=residual)


rms_norm = Operation(
    rms_norm_reference,
    _check_norm,
    {"cuda": "quire.kernels.gpu.linear.norm:rms_norm", "cpu": "quire.kernels.cpu.linear.norm:rms_norm"},
)
add_rms_norm = Operation(
    add_rms_norm_reference,
    _check_add_norm,
    {"cuda": "quire.kernels.gpu.linear.norm:add_rms_norm", "cpu": "quire.kernels.cpu.linear.norm:add_rms_norm"},
)
