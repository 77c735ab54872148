"""The gated activation for CPUs: one pass, vectorised exponentials."""

import torch

from quire.kernels.cpu.native import dtype_code, native
from quire.kernels.linear.activation import GATES, Gate

GATE_CODES: dict[Gate | None, int] = {None: -1, **{gate: number for number, gate in enumerate(GATES)}}
"""The library's numbers of the activations; see gate.hpp."""


def gated_activation(x: torch.Tensor, kind: Gate) -> torch.Tensor:
    """See kernels/linear/activation.py."""
    rows, width = x.shape
    out = x.new_empty((rows, width // 2))
    native().quire_gated_activation(
        dtype_code("x", x), GATE_CODES[kind], x.data_ptr(), out.data_ptr(), rows, width // 2, torch.get_num_threads()
    )
    return out
