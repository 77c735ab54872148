"""Experts whose matrices are quantized: each is made by its scheme, and multiplies the tokens that are sent to it."""

from functools import cached_property
from typing import Final

import torch
from torch import nn

from quire.kernels.experts.coded import CodedMatrices, coded_experts
from quire.kernels.experts.experts import ExpertGate, gate_experts, sum_of_experts
from quire.kernels.linear.pack import BLOCK
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

    @property
    def last_bias(self) -> torch.Tensor | None:
        """The first of the ranks that share the inner axis adds it."""
        return self.down.bias if self.adds_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        inner = gate_experts(self.gate_up.product(x), self.kind)
        return self.down.scheme.apply(self.down, inner, self.last_bias)


class ExpertsApart(nn.ModuleList):
    """The gated blocks of all experts, in one operation where all are stored alike and it knows how; else one after
    another. Of those that another rank was dealt nothing is here."""

    def __init__(self, context: BuildContext, hidden: int, spec: ExpertsSpec) -> None:
        own, share = spec.shares(context.group.rank, context.group.size)
        self.own, nothing = range(own.start, own.stop), Slice(share.full, 0, 0)
        self.hidden, self.inner, self.kind = hidden, share.length, spec.activation
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
        if coded_experts.has_form(x.device.type) and self._coded is not None:
            return coded_experts(x, ids, weights, *self._coded, self.kind, self.own.start)
        return sum_of_experts(x, ids, weights, self.own, lambda number, tokens: self[number](tokens))

    @cached_property
    def _coded(self) -> tuple[CodedMatrices, CodedMatrices] | None:
        """Both matrices of the experts that are here, once they are filled; None: each has a product of its own."""
        here = [expert for expert in self if isinstance(expert, Expert)][self.own.start : self.own.stop]
        wide, narrow = [one.gate_up for one in here], [one.down for one in here]
        alike = all(one.scheme == layers[0].scheme for layers in (wide, narrow) for one in layers)
        if not here or not alike or self.inner % BLOCK:
            return None
        gate_up = wide[0].scheme.coded(wide, [one.bias for one in wide], 2 * self.inner, self.hidden)
        down = narrow[0].scheme.coded(narrow, [one.last_bias for one in here], self.hidden, self.inner)
        return None if gate_up is None or down is None else (gate_up, down)
