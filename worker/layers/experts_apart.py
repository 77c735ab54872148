"""Experts whose matrices are quantized: each is made by its scheme, and multiplies the tokens that are sent to it."""

from typing import Final

import torch
from torch import nn

from quire.kernels.experts.experts import ExpertGate, gate_experts, sum_of_experts
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import Linear
from quire.worker.specs.spec import ExpertsSpec
from quire.worker.weights.parts import Slice, whole

MATRICES: Final = ("gate_up.gate", "gate_up.up", "down")
"""Paths of the matrices of an expert."""


class Expert(nn.Module):
    """One gated block: this rank's share of its inner axis, `rows`, which may be all of it, or nothing."""

    def __init__(self, context: BuildContext, hidden: int, rows: Slice, kind: ExpertGate, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.adds_bias = rows.start == 0
        every = whole(hidden) if rows.length else Slice(hidden, 0, 0)
        self.gate_up = Linear(context.at("gate_up"), (("gate", rows), ("up", rows)), every, bias)
        self.down = Linear(context.at("down"), (("", every),), rows, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; the first of the ranks that share the inner axis adds the last bias."""
        inner = gate_experts(self.gate_up.product(x), self.kind)
        return self.down.scheme.apply(self.down, inner, self.down.bias if self.adds_bias else None)


class ExpertsApart(nn.ModuleList):
    """The gated blocks of all experts, one after another; of those that another rank was dealt nothing is here."""

    def __init__(self, context: BuildContext, hidden: int, spec: ExpertsSpec) -> None:
        own, share = spec.shares(context.group.rank, context.group.size)
        self.own, nothing = range(own.start, own.stop), Slice(share.full, 0, 0)
        super().__init__(
            Expert(
                context.at(str(number)),
                hidden,
                share if number in self.own else nothing,
                spec.activation,
                spec.bias,
            )
            for number in range(spec.num_experts)
        )

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, hidden], the experts of each token and what they count, [T, k] -> this rank's share of their sum."""
        return sum_of_experts(x, ids, weights, self.own, lambda number, tokens: self[number](tokens))
