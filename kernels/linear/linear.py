"""Linear layers: alone, and with the residual addition and norm before them and the gated activation after them."""

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.checks import FLOATS, check_bias, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.activation import Gate, check_gate, gated_activation_reference
from quire.kernels.linear.norm import check_residual_norm, residual_norm_reference
from quire.kernels.linear.pack import BLOCK, PAIR, num_outputs, unpack


def linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`x @ weight.T + bias`: x [T, I], weight [O, I] (or as `pack` made it), bias [O] -> [T, O]."""
    return torch_linear(x, unpack(weight), bias)


def norm_linear_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear(rms_norm(total))` and `total = residual + x`: x and residual [T, I], weight [O, I] -> ([T, O], [T, I]).

    Without a residual, total is x itself. With a gate, weight holds O / 2 gate rows and then O / 2 up rows, and the
    result is `gate(gate rows) * up rows`, [T, O / 2].
    """
    normed, total = residual_norm_reference(x, residual, norm_weight, eps)
    wide = linear_reference(normed, weight, bias)
    return (wide if gate is None else gated_activation_reference(wide, gate)), total


def _check_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("weight", weight, _shape_of(weight.dim(), x.shape[1]), (x.dtype,), x.device)
    check_contiguous(x=x, weight=weight)
    check_bias(bias, num_outputs(weight), x)


def _shape_of(dims: int, inputs: int) -> tuple[int | None, ...]:
    """Shape of a weight in the form that has so many dimensions."""
    if dims == 3:
        return (None, inputs, BLOCK)
    return (None, inputs // PAIR, BLOCK, PAIR) if dims == 4 else (None, inputs)


def _check_norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> None:
    _check_linear(x, weight, bias)
    check_residual_norm(x, residual, norm_weight, eps)
    check_gate(gate, num_outputs(weight))


linear = Operation(
    linear_reference,
    _check_linear,
    {
        "cpu": "quire.kernels.cpu.linear.linear:linear",
        "cuda": "quire.kernels.gpu.linear.linear:linear",
    },
)
norm_linear = Operation(
    norm_linear_reference,
    _check_norm_linear,
    {
        "cpu": "quire.kernels.cpu.linear.linear:norm_linear",
        "cuda": "quire.kernels.gpu.linear.linear:norm_linear",
    },
)
