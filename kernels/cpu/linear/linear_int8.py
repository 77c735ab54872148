"""Linear layers on 8-bit integers for CPUs: norm and quantization in one pass, the product in tiles, the scales, bias
and activation on the sums while they are in the first-level cache."""

import torch

from quire.kernels.cpu.linear.activation import GATE_CODES, gated_activation
from quire.kernels.cpu.linear.linear import ROW_BYTES
from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_int8 import BLOCK, GROUP


def linear_int8(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See kernels/linear/linear_int8.py."""
    return _multiply(x, None, None, None, 0.0, weight, scale, bias, None)


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
    """See kernels/linear/linear_int8.py."""
    total = x if residual is None else torch.empty_like(x)
    whole = gate is None or scale.shape[0] % (2 * BLOCK) == 0
    # else gate and up share a block of outputs, and the product cannot be joined with the activation
    out = _multiply(x, residual, total, norm_weight, eps, weight, scale, bias, gate if whole else None)
    return (out if gate is None or whole else gated_activation(out, gate)), total


def _multiply(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    total: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> torch.Tensor:
    rows, inputs = x.shape
    outputs = scale.shape[0]
    out = x.new_empty((rows, outputs if gate is None else outputs // 2))
    scratch = torch.empty(rows * (weight.shape[1] * GROUP + ROW_BYTES), dtype=torch.uint8)
    native().quire_linear_int8(
        dtype_code("x", x),
        x.data_ptr(),
        address(residual),
        address(norm_weight),
        address(total),
        rows,
        inputs,
        eps,
        weight.data_ptr(),
        scale.data_ptr(),
        address(bias),
        outputs,
        GATE_CODES[gate],
        out.data_ptr(),
        scratch.data_ptr(),
        torch.get_num_threads(),
    )
    return out
