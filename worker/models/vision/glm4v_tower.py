"""The vision tower of GLM-4.1V, 4.5V and 4.6V (GLM-V Team, 2025): blocks over the patches of each item, and rows of a
decoder made of squares of them by a convolution and a gated product."""

from collections.abc import Sequence

import torch
from torch import nn

from quire.kernels.linear.activation import activation, gated_activation
from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import LayerNorm, RMSNorm
from quire.worker.models.vision.block import GatedMLP, TowerBlock, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import PatchRotary, PositionGrid, places
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.sighted.glm4v import GlmVisionSpec
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule

MERGER_EPS = 1e-5
"""Epsilon of the merger's norm, for which no config states one."""


class Downsample(ShardedModule):
    """A convolution over each square of patches, whose steps are as wide as its kernel: one product."""

    def __init__(self, context: BuildContext, spec: GlmVisionSpec) -> None:
        super().__init__()
        axes = (spec.output_size, spec.hidden_size, spec.merge_size, spec.merge_size)
        self.scheme = context.scheme
        self.declare("weight", context.dtype, (Part("", tuple(map(whole, axes))),))
        self.declare("bias", context.dtype, (Part("", (whole(spec.output_size),)),))
        self._square = spec.merge_size**2, spec.hidden_size

    def finish(self) -> None:
        """The kernel becomes a matrix."""
        self.register_parameter("weight", nn.Parameter(self.stored("weight").flatten(1), requires_grad=False))
        self.scheme.finish(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T / merge², output]: an element of all patches of a square, then the next."""
        squares = x.view(-1, *self._square).transpose(1, 2).flatten(1)
        return self.scheme.apply(self, squares, self.stored("bias"))


class GlmMerger(nn.Module):
    """A product, a norm and an exact gelu, and a gated product behind them; no product has a bias."""

    def __init__(self, context: BuildContext, spec: GlmVisionSpec) -> None:
        super().__init__()
        wide, inner = spec.output_size, spec.merger_size
        self.projection = ReplicatedLinear(context.at("projection"), wide, wide)
        self.norm = LayerNorm(context, wide, MERGER_EPS)
        self.gate_up = ReplicatedLinear(context.at("gate_up"), wide, inner, names=("gate", "up"))
        self.down = ReplicatedLinear(context.at("down"), inner, wide)
        self.gate = spec.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, output] -> the same shape"""
        normed = activation(self.norm(self.projection.product(x)), "gelu")
        return self.down.product(gated_activation(self.gate_up.product(normed), self.gate))


class GlmTower(Tower):
    def __init__(self, spec: GlmVisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec))
        self.patch_norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.positions = PositionGrid(context, spec.grid_side, spec.hidden_size)
        self.blocks = nn.ModuleList(
            TowerBlock(
                at,
                spec,
                RMSNorm,
                GatedMLP(at.at("mlp"), spec, spec.activation, bias=False),
                qkv_bias=spec.qkv_bias,
                output_bias=False,
            )
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.downsample = Downsample(context.at("downsample"), spec)
        self.merger = GlmMerger(context.at("merger"), spec)
        self._rotary = PatchRotary(spec.head_dim, spec.rope_theta, context.device)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        where = places(grids, self.spec.merge_size, x.device)
        x = self.patch_norm(x) + self.positions.bicubic(where).to(x.dtype)
        rotation = self._rotary(where)
        within = runs([rows * columns for _, rows, columns in grids], x.device)
        for block in self.blocks:
            x = block(x, rotation, within)
        merged: torch.Tensor = self.merger(self.downsample(self.norm(x)))
        return merged
