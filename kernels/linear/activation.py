"""The activation of the feed-forward block, alone and as a gate (Shazeer, 2020)."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch.nn.functional import gelu, silu

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation

Gate = Literal["silu", "gelu", "gelu_tanh"]
"""`gelu` is the exact one, with the error function; `gelu_tanh` its approximation (Hendrycks and Gimpel, 2016)."""

Activation = Literal[Gate, "gelu_quick"]
"""`gelu_quick` approximates the gelu by one sigmoid (the same paper, section 2)."""


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """`x * sigmoid(1.702 * x)`."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"silu": silu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh"), "gelu_quick": quick_gelu}
)
GATES: Mapping[Gate, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {kind: ACTIVATIONS[kind] for kind in get_args(Gate)}
)


def check_gate(gate: Gate | None, outputs: int) -> None:
    """Raise ValueError unless a layer of so many outputs can end in this activation; None: in none."""
    if gate is not None and gate not in GATES:
        raise ValueError(f"gate: expected None or one of {', '.join(GATES)}, got {gate!r}")
    if gate is not None and outputs % 2:
        raise ValueError(f"weight: holds gate rows and up rows, so an even number of outputs, got {outputs}")


def gated_activation_reference(x: torch.Tensor, kind: Gate) -> torch.Tensor:
    """`kind(gate) * up` of the two halves of the last dimension: x [T, 2 * D] -> [T, D].

    The activation is rounded to x's dtype before the product, as the published models were trained.
    """
    gate, up = x.chunk(2, dim=-1)
    return GATES[kind](gate) * up


def check_gated(x: torch.Tensor, kind: Gate) -> None:
    """Raise ValueError unless x [T, 2 * D] is gate and up of this activation."""
    check_tensor("x", x, (None, None), FLOATS, x.device)
    if x.shape[1] % 2:
        raise ValueError(f"x: the last dimension holds gate and up, so it must be even, got {x.shape[1]}")
    check_contiguous(x=x)
    if kind not in GATES:
        raise ValueError(f"kind: must be one of {', '.join(GATES)}, got {kind!r}")


def halves(x: torch.Tensor) -> torch.Tensor:
    """Gate and up as rows of their own, to check them as the inputs of a layer: x [T, 2 * D] -> [2 * T, D]."""
    return x.view(2 * x.shape[0], x.shape[1] // 2)


gated_activation = Operation(
    gated_activation_reference,
    check_gated,
    {
        "cuda": "quire.kernels.gpu.linear.activation:gated_activation",
        "cpu": "quire.kernels.cpu.linear.activation:gated_activation",
    },
)


def gated_reference(x: torch.Tensor, values: torch.Tensor, kind: Gate) -> torch.Tensor:
    """`kind(x) * values`, both [T, D], rounded as `gated_activation` does; rows may lie apart."""
    return GATES[kind](x) * values


def _check_gates(x: torch.Tensor, values: torch.Tensor, kind: Gate) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("values", values, tuple(x.shape), (x.dtype,), x.device)
    for name, rows in (("x", x), ("values", values)):
        if rows.stride(1) != 1:
            raise ValueError(f"{name}: the elements of a row must lie one after another, got strides {rows.stride()}")
    if kind not in GATES:
        raise ValueError(f"kind: must be one of {', '.join(GATES)}, got {kind!r}")


# a GPU records torch's own operations in its graphs
gated = Operation(gated_reference, _check_gates, {"cpu": "quire.kernels.cpu.linear.activation:gated"})


def activation_reference(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """`kind(x)` of every element: [T, D] -> [T, D]."""
    return ACTIVATIONS[kind](x)


def _check_activation(x: torch.Tensor, kind: Activation) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_contiguous(x=x)
    if kind not in ACTIVATIONS:
        raise ValueError(f"kind: must be one of {', '.join(ACTIVATIONS)}, got {kind!r}")


# on CPUs the reference is torch's own vectorised loop: there is nothing to gain
activation = Operation(
    activation_reference, _check_activation, {"cuda": "quire.kernels.gpu.linear.activation:activation"}
)
