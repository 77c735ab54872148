"""The feed-forward block, gated and plain."""

from statistics import NormalDist

import torch
from torch import nn
from torch.nn.functional import relu

from quire.kernels.linear.activation import Gate, activation, gated_activation
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import Group
from quire.worker.layers.linear import ColumnLinear, MergedLinear, RowLinear
from quire.worker.layers.norm import Norm


class SparseGate:
    """A gate less a bound, and nothing below it: one that such a part of its inputs would stay below, were they
    normally distributed. Those of all ranks count, which hold equally many."""

    def __init__(self, group: Group, sparsity: float) -> None:
        self._group = group
        self._deviations = NormalDist().inv_cdf(sparsity)

    def __call__(self, wide: torch.Tensor) -> torch.Tensor:
        """Gate and up [T, 2 * inner] -> the same, with a gate of zeros where it is below the bound."""
        gate, up = wide.float().chunk(2, -1)
        variance, mean = torch.var_mean(gate, -1, correction=0, keepdim=True)
        if self._group.size > 1:
            shared = self._group.all_gather(torch.cat((mean, variance), -1)).view(len(wide), -1, 2)
            between, mean = torch.var_mean(shared[..., 0], -1, correction=0, keepdim=True)
            variance = shared[..., 1].mean(-1, keepdim=True) + between
        kept = relu(gate - (mean + variance.sqrt() * self._deviations))
        return torch.cat((kept, up), -1).to(wide.dtype)


class GatedMLP(nn.Module):
    """`down(gate(x) * up(x))`, where `kind` is the gate's activation, before which `sparsity` of it is cut off."""

    def __init__(
        self, context: BuildContext, hidden: int, intermediate: int, bias: bool, kind: Gate, sparsity: float = 0.0
    ) -> None:
        super().__init__()
        axis = "intermediate_size"
        self.kind: Gate = kind
        self.sparse = SparseGate(context.group, sparsity) if sparsity else None
        self.gate_up = MergedLinear(context.at("gate_up"), hidden, intermediate, ("gate", "up"), axis, bias)
        self.down = RowLinear(context.at("down"), intermediate, hidden, axis, bias)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden] -> the block over the norm of their sum, and the sum, both [T, hidden].

        Without a residual the sum is x; without a norm the block is over the sum itself.
        """
        if self.sparse is not None:
            wide, total = self.gate_up.normed(x, residual, norm, batch)
            return self.down(gated_activation(self.sparse(wide), self.kind), batch), total
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
