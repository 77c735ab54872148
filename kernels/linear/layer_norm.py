"""Layer normalisation (Ba et al., 2016) after a residual addition, as encoders have it."""

import torch
from torch.nn.functional import layer_norm as torch_layer_norm

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def layer_norm_reference(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """`(s - mean(s)) / sqrt(var(s) + eps) * weight + bias` over the last dimension of s = residual + x.

    x and residual [T, D], weight and bias [D] -> [T, D]. The sum is rounded to x's dtype, all else is float32 until
    the result. Without a residual s is x.
    """
    total = x if residual is None else residual + x
    wide = torch_layer_norm(total.float(), (x.shape[-1],), weight.float(), bias.float(), eps)
    return wide.to(x.dtype)


def _check(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("weight", weight, (x.shape[1],), (x.dtype,), x.device)
    check_tensor("bias", bias, (x.shape[1],), (x.dtype,), x.device)
    check_contiguous(x=x, weight=weight, bias=bias)
    if residual is not None:
        check_tensor("residual", residual, tuple(x.shape), (x.dtype,), x.device)
        check_contiguous(residual=residual)
    if eps <= 0.0:
        raise ValueError(f"eps: must be positive, got {eps}")


layer_norm = Operation(
    layer_norm_reference,
    _check,
    {"cuda": "quire.kernels.gpu.linear.layer_norm:layer_norm", "cpu": "quire.kernels.cpu.linear.layer_norm:layer_norm"},
)
