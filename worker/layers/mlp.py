"""The feed-forward block, gated and plain."""

import torch
from torch import nn

from quire.kernels.linear.activation import Gate, activation
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ColumnLinear, MergedLinear, RowLinear
from quire.worker.layers.norm import Norm


class GatedMLP(nn.Module):
    """`down(gate(x) * up(x))`, where `kind` is the gate's activation."""

    def __init__(self, context: BuildContext, hidden: int, intermediate: int, bias: bool, kind: Gate) -> None:
        super().__init__()
        axis = "intermediate_size"
        self.kind: Gate = kind
        self.gate_up = MergedLinear(context.at("gate_up"), hidden, intermediate, ("gate", "up"), axis, bias)
        self.down = RowLinear(context.at("down"), intermediate, hidden, axis, bias)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden] -> the block over the norm of their sum, and the sum, both [T, hidden].

        Without a residual the sum is x; without a norm the block is over the sum itself.
        """
        if self.down.scheme.joins_gate(x.device.type):
            wide, total = self.gate_up.normed(x, residual, norm, batch)
            return self.down.gated(wide, self.kind, batch), total
        gated, total = self.gate_up.normed(x, residual, norm, batch, self.kind)
        out: torch.Tensor = self.down(gated, batch)
        return out, total

    def share(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """This rank's part of the block over x, [T, hidden], which are to be added."""
        gated, _ = self.gate_up.normed(x, None, None, batch, self.kind)
        return self.down.share(gated, batch)


class MLP(nn.Module):
    """`down(kind(up(x)))`, with biases."""

    def __init__(self, context: BuildContext, hidden: int, intermediate: int, kind: Gate) -> None:
        super().__init__()
        axis = "intermediate_size"
        self.kind: Gate = kind
        self.up = ColumnLinear(context.at("up"), hidden, intermediate, axis, bias=True)
        self.down = RowLinear(context.at("down"), intermediate, hidden, axis, bias=True)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        out: torch.Tensor = self.down(activation(self.up(x, batch), self.kind), batch)
        return out
