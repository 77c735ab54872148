"""The gated activation for CPUs: one pass, vectorised exponentials."""

import torch

from quire.kernels.cpu.native import dtype_code, native
from quire.kernels.linear.activation import GATES, Gate

GATE_CODES: dict[Gate | None, int] = {None: -1, **{gate: number for number, gate in enumerate(GATES)}}
"""The library's numbers of the activations; see gate.hpp."""


def gated_activation(x: torch.Tensor, kind: Gate) -> torch.Tensor:
    """See kernels/linear/activation.py."""
    size = x.shape[1] // 2
    return gated(x[:, :size], x[:, size:], kind)


def gated(x: torch.Tensor, values: torch.Tensor, kind: Gate) -> torch.Tensor:
    """See kernels/linear/activation.py."""
    rows, size = x.shape
    out = x.new_empty((rows, size))
    native().quire_gated_activation(
        dtype_code("x", x),
        GATE_CODES[kind],
        x.data_ptr(),
        x.stride(0),
        values.data_ptr(),
        values.stride(0),
        out.data_ptr(),
        rows,
        size,
        torch.get_num_threads(),
    )
    return out
