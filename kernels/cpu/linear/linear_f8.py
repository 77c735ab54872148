"""Linear layers on 8-bit floats for CPUs: norm and rounding to codes in one pass, weights widened in registers, scales,
bias and activation on the sums while they are in the first-level cache."""

from typing import get_args

import torch

from quire.kernels.cpu.linear.activation import GATE_CODES, gated_activation
from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import BLOCK, GROUP, Activations

ACTIVATION_CODES: dict[Activations, int] = {name: number for number, name in enumerate(get_args(Activations))}
"""The library's numbers of what becomes of activations; see f8.hpp."""
LANE_BYTES = 4
"""Scratch memory of an input at most, and of a scale; a row has four bytes besides. See linear.hpp."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """See kernels/linear/linear_f8.py."""
    outputs, inputs = weight.shape
    shape = (-(-outputs // BLOCK), (-(-inputs // GROUP) + 1) * GROUP, BLOCK)
    packed = torch.zeros(shape, dtype=torch.uint8)
    native().quire_pack_f8(weight.data_ptr(), outputs, inputs, packed.data_ptr(), torch.get_num_threads())
    return packed.view(weight.dtype)


def linear_f8(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """See kernels/linear/linear_f8.py."""
    return _multiply(x, None, None, None, 0.0, weight, scale, bias, None, activations, input_scale)


def linear_f8_blocks(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, activations: Activations
) -> torch.Tensor:
    """See kernels/linear/linear_f8_blocks.py."""
    return _multiply(x, None, None, None, 0.0, weight, scale, bias, None, activations, None)


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
    """See kernels/linear/linear_f8.py."""
    total = x if residual is None else torch.empty_like(x)
    whole = gate is None or _outputs(weight, scale) % (2 * BLOCK) == 0
    # else gate and up share a block of outputs, and the product cannot be joined with the activation
    joined = gate if whole else None
    out = _multiply(x, residual, total, norm_weight, eps, weight, scale, bias, joined, activations, input_scale)
    return (out if gate is None or whole else gated_activation(out, gate)), total


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
    """See kernels/linear/linear_f8_blocks.py."""
    return norm_linear_f8(x, residual, norm_weight, eps, weight, scale, bias, gate, activations, None)


def _outputs(weight: torch.Tensor, scale: torch.Tensor) -> int:
    return scale.shape[0] if scale.dim() == 1 else weight.shape[0] * BLOCK


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
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    rows, inputs = x.shape
    outputs, scales = _outputs(weight, scale), scale.shape[1] if scale.dim() == 2 else 0
    out = x.new_empty((rows, outputs if gate is None else outputs // 2))
    scratch = torch.empty(rows * LANE_BYTES * (weight.shape[1] - GROUP + max(1, scales) + 1), dtype=torch.uint8)
    native().quire_linear_f8(
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
        scales,
        address(bias),
        outputs,
        ACTIVATION_CODES[activations],
        address(input_scale),
        GATE_CODES[gate],
        out.data_ptr(),
        scratch.data_ptr(),
        torch.get_num_threads(),
    )
    return out
