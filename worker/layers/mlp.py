"""The gated feed-forward block."""

import torch
from torch import nn

from quire.kernels.activation import silu_mul
from quire.worker.build import BuildContext
from quire.worker.layers.linear import MergedLinear, RowLinear


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`: [T, hidden] -> [T, hidden]."""

    def __init__(self, context: BuildContext, hidden: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        axis = "intermediate_size"
        self.gate_up = MergedLinear(context, hidden, intermediate, ("gate", "up"), axis, bias)
        self.down = RowLinear(context, intermediate, hidden, axis, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(silu_mul(self.gate_up(x)))
        return out
