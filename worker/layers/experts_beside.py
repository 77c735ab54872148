"""A dense feed-forward block and experts beside it: both see the same sum, each by norms of its own."""

import torch
from torch import nn

from quire.kernels.experts.counted import scale_weights
from quire.kernels.rows import add
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.expert_choice import ExpertChoice
from quire.worker.layers.experts import Router, build_experts
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import Norm, RMSNorm, build_norm
from quire.worker.specs.spec import ExpertsSpec, NormSpec
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule


class RouterNorm(RMSNorm):
    """The norm before a router, whose gains count hidden ** -0.5 times."""

    def finish(self) -> None:
        gains = self.stored("weight")
        gains.mul_(len(gains) ** -0.5)


class ExpertScales(ShardedModule):
    """Factors of the weights of experts, which every rank holds."""

    def __init__(self, context: BuildContext, num_experts: int) -> None:
        super().__init__()
        self.declare("value", context.dtype, (Part("", (whole(num_experts),)),))

    def forward(self, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Weights of experts, float32 [T, k], times the factor of each, int32 [T, k]."""
        return scale_weights(weights, ids, self.stored("value"))


class ExpertsBeside(nn.Module):
    """The sum of a dense block and of each token's experts."""

    def __init__(self, context: BuildContext, hidden: int, spec: ExpertsSpec, norm: NormSpec) -> None:
        super().__init__()
        assert spec.shared is not None
        self.group = context.group
        self.choice = ExpertChoice(spec)
        self.router_norm = RouterNorm(context, hidden, norm.eps, norm.kind)
        self.router = Router(context.at("router"), hidden, spec)
        self.scales = ExpertScales(context, spec.num_experts)
        self.experts_norm = build_norm(context, hidden, norm)
        self.experts = build_experts(context.at("experts"), hidden, spec)
        self.experts_end_norm = build_norm(context, hidden, norm)
        one = spec.shared
        self.shared = GatedMLP(context.at("shared"), hidden, one.intermediate_size, one.bias, one.activation)
        self.shared_end_norm = build_norm(context, hidden, norm)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden] -> the block over their sum, and the sum, both [T, hidden]; `norm`: the dense
        block's."""
        dense, total = self.shared(x, residual, norm, batch)
        logits = self.router(self.router_norm(total))
        ids, weights = self.choice(logits, None, batch)
        routed = self.experts(self.experts_norm(total), ids, self.scales(weights, ids))
        ended = self.experts_end_norm(self.group.all_reduce(routed))
        return add(self.shared_end_norm(dense), ended), total
