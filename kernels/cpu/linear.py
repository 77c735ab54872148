"""Linear layers for CPUs through oneDNN, on weights that were packed once: the packing is what makes few rows fast."""

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.activation import Gate
from quire.kernels.cpu.activation import gated_activation
from quire.kernels.cpu.norm import add_rms_norm, rms_norm


def pack(weight: torch.Tensor) -> torch.Tensor:
    """See kernels/pack.py. One packed copy serves every number of rows; torch reports its true size."""
    ops = torch.ops.mkldnn
    packs = torch.backends.mkldnn.is_available() and (  # type: ignore[no-untyped-call]
        weight.dtype is torch.float32
        or (weight.dtype is torch.bfloat16 and ops._is_mkldnn_bf16_supported())
        or (weight.dtype is torch.float16 and ops._is_mkldnn_fp16_supported())
    )
    if not packs:  # oneDNN has no kernel for this dtype on this processor, torch does
        return weight
    packed: torch.Tensor = ops._reorder_linear_weight(weight)
    return packed


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See kernels/linear.py; `weight` may have been packed."""
    if not weight.is_mkldnn:
        return torch_linear(x, weight, bias)
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/linear.py; `weight` may have been packed."""
    if residual is None:
        normed, total = rms_norm(x, norm_weight, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm_weight, eps)
    wide = linear(normed, weight, bias)
    return (wide if gate is None else gated_activation(wide, gate)), total
