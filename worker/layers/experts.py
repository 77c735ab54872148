"""A feed-forward block of experts: a router sends each token to a few of them, and all tokens may have one besides."""

import torch
from torch import nn
from torch.nn.functional import pad

from quire.kernels.experts.counted import count_inputs
from quire.kernels.experts.experts import experts
from quire.kernels.experts.pack import pack_experts
from quire.kernels.experts.shared import add_shared
from quire.kernels.linear.linear import linear
from quire.kernels.linear.pack import BLOCK, pack
from quire.kernels.rows import add, widen
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.expert_choice import ExpertChoice
from quire.worker.layers.experts_apart import MATRICES, ExpertsApart
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import Norm
from quire.worker.quant.dense import DenseScheme
from quire.worker.specs.spec import ExpertsSpec
from quire.worker.weights.parts import Part, Slice, consecutive, whole
from quire.worker.weights.shard import ShardedModule


class Router(ShardedModule):
    """A logit for each expert, and one more for what the expert of all tokens counts, if its spec says so; every rank
    has it whole. One with a bias is float32, as its bias is."""

    def __init__(self, context: BuildContext, hidden: int, spec: ExpertsSpec) -> None:
        super().__init__()
        self.is_biased, self.has_logit_bias = spec.biased, spec.bias
        outputs = (("experts", whole(spec.num_experts)), *((("shared", whole(1)),) if spec.shared_gate else ()))
        dtype = torch.float32 if spec.biased else context.dtype
        self.declare("weight", dtype, consecutive(outputs, whole(hidden)))
        if spec.biased:
            self.declare("bias", torch.float32, (Part("", (whole(spec.num_experts),)),))
        if spec.bias:
            self.declare("logit_bias", dtype, consecutive(outputs))

    @property
    def for_choice(self) -> torch.Tensor | None:
        """The bias, float32 [experts]."""
        return self.stored("bias") if self.is_biased else None

    def finish(self) -> None:
        weight = self.stored("weight")
        missing = -weight.shape[0] % BLOCK
        self.register_parameter("weight", nn.Parameter(pack(pad(weight, (0, 0, 0, missing))), requires_grad=False))
        if self.has_logit_bias:
            bias = pad(self.stored("logit_bias"), (0, missing))
            self.register_parameter("logit_bias", nn.Parameter(bias, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> logits [T, experts, one more where there is one for all tokens, and zeros to a whole block]"""
        weight, bias = self.stored("weight"), self.stored("logit_bias") if self.has_logit_bias else None
        return linear(x if x.dtype is weight.dtype else widen(x), weight, bias)


class Experts(ShardedModule):
    """The gated blocks of all experts; a rank holds its share of the inner axis of every one, or some of them whole.

    Ranks that share the inner axis all have the biases of the second product; the one whose share is the first adds
    them.
    """

    def __init__(self, context: BuildContext, hidden: int, spec: ExpertsSpec) -> None:
        super().__init__()
        self.kind = spec.activation
        own, share = spec.shares(context.group.rank, context.group.size)
        self.first, every = own.start, whole(hidden)
        halves = (("gate_up.gate", 0), ("gate_up.up", share.length))
        inner = [share if n in range(own.start, own.stop) else Slice(share.full, 0, 0) for n in range(own.full)]
        wide = (
            Part(f"{n}.{name}", (rows, every), 0, offset, (n - own.start,), "weight")
            for n, rows in enumerate(inner)
            for name, offset in halves
        )
        self.declare("gate_up", context.dtype, tuple(wide), (own.length, 2 * share.length, hidden))
        down = (
            Part(f"{n}.down", (every, columns), index=(n - own.start,), tensor="weight")
            for n, columns in enumerate(inner)
        )
        self.declare("down", context.dtype, tuple(down), (own.length, hidden, share.length))
        self.is_biased, self.adds_down_bias = spec.bias, spec.bias and share.start == 0
        if spec.bias:
            wide = (
                Part(f"{n}.{name}", (rows,), 0, offset, (n - own.start,), "bias")
                for n, rows in enumerate(inner)
                for name, offset in halves
            )
            self.declare("gate_up_bias", context.dtype, tuple(wide), (own.length, 2 * share.length))
            outer = (every if rows.length else Slice(hidden, 0, 0) for rows in inner)
            down = (Part(f"{n}.down", (rows,), index=(n - own.start,), tensor="bias") for n, rows in enumerate(outer))
            self.declare("down_bias", context.dtype, tuple(down), (own.length, hidden))

    def finish(self) -> None:
        packed = pack_experts(self.stored("gate_up"), self.stored("down"))
        for name, matrices in zip(("gate_up", "down"), packed, strict=True):
            self.register_parameter(name, nn.Parameter(matrices, requires_grad=False))

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, hidden], the experts of each token and what they count, [T, k] -> this rank's share of their sum."""
        matrices = self.stored("gate_up"), self.stored("down")
        inner_bias = self.stored("gate_up_bias") if self.is_biased else None
        outer_bias = self.stored("down_bias") if self.adds_down_bias else None
        return experts(x, ids, weights, *matrices, self.kind, self.first, inner_bias, outer_bias)


def build_experts(context: BuildContext, hidden: int, spec: ExpertsSpec) -> Experts | ExpertsApart:
    """Experts in one stack where all of their matrices are dense; else each by itself."""
    paths = (f"{number}.{name}" for number in range(spec.num_experts) for name in MATRICES)
    is_dense = all(isinstance(context.at(path).scheme, DenseScheme) for path in paths)
    return Experts(context, hidden, spec) if is_dense else ExpertsApart(context, hidden, spec)


class RoutedMLP(nn.Module):
    """The weighted sum of each token's experts, and of the one that all tokens have, where there is one."""

    def __init__(self, context: BuildContext, hidden: int, spec: ExpertsSpec) -> None:
        super().__init__()
        self.group = context.group
        self.choice = ExpertChoice(spec)
        self.scales_input = spec.scales_input
        self.router = Router(context.at("router"), hidden, spec)
        self.experts = build_experts(context.at("experts"), hidden, spec)
        self.is_gated = spec.shared_gate
        self.shared: GatedMLP | None = None
        if (one := spec.shared) is not None:
            self.shared = GatedMLP(context.at("shared"), hidden, one.intermediate_size, one.bias, one.activation)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, norm: Norm | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden] -> the block over the norm of their sum, and the sum, both [T, hidden].

        Without a residual the sum is x; without a norm the block is over the sum itself. Padding gets zeros.
        """
        if norm is None:
            normed = total = x if residual is None else add(residual, x)
        else:
            normed, total = (norm(x), x) if residual is None else norm.add(x, residual)
        logits = self.router(normed)
        ids, weights = self.choice(logits, self.router.for_choice, batch)
        if self.scales_input:
            counted, ones = count_inputs(normed, weights)
            out = self.experts(counted, ids, ones)
        else:
            out = self.experts(normed, ids, weights)
        if self.shared is not None:
            shared = self.shared.share(normed, batch)
            out = add_shared(out, shared, logits if self.is_gated else None, self.choice.routing.num_experts)
        return self.group.all_reduce(out), total
