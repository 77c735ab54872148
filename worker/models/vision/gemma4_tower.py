"""The vision tower of Gemma 4 (2026), and what its 12B kind has in place of one: patches that are rows as they are."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_in_place import rope_in_place
from quire.kernels.linear.activation import gated_activation
from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.clipped import ClippedColumns, ClippedRow
from quire.worker.layers.linear import MergedLinear, ReplicatedLinear, RowLinear
from quire.worker.layers.norm import GainlessNorm, LayerNorm, RMSNorm
from quire.worker.models.vision.block import HEADS, INNER, Runs, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import AxisPositions, PatchRotary, places
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.sighted.gemma4_images import Gemma4PatchSpec, Gemma4TowerSpec
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule

PATCH_EPS = 1e-5
"""Epsilon of norms for which no config states one."""
QUARTERS = (2, 2)
"""A head turns by the column of a patch, then by its row; of each half the first elements of all pairs come first."""


class Gemma4Block(nn.Module):
    """Attention within each item and a gated feed-forward, each between two norms; no product has a bias."""

    def __init__(self, context: BuildContext, spec: Gemma4TowerSpec) -> None:
        super().__init__()
        hidden, inner, eps = spec.hidden_size, spec.intermediate_size, spec.norm_eps
        merged, row = (ClippedColumns, ClippedRow) if spec.clips else (MergedLinear, RowLinear)
        norm = partial(RMSNorm, context, eps=eps, kind="rms_wide")
        self.attention_norm, self.attention_end_norm = norm(hidden), norm(hidden)
        self.qkv = merged(context.at("qkv"), hidden, hidden, ("q", "k", "v"), HEADS)
        self.query_norm, self.key_norm = norm(spec.head_dim), norm(spec.head_dim)
        self.value_norm = GainlessNorm(context, spec.head_dim, eps)
        self.output = row(context.at("output"), hidden, hidden, HEADS)
        self.mlp_norm, self.mlp_end_norm = norm(hidden), norm(hidden)
        self.gate_up = merged(context.at("gate_up"), hidden, inner, ("gate", "up"), INNER)
        self.down = row(context.at("down"), inner, hidden, INNER)
        self.num_heads, self.head_dim = context.share(HEADS, spec.num_heads).length, spec.head_dim
        self.gate = spec.gate

    def forward(self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], within: Runs) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `within`: the patches of each item."""
        qkv = self._normed(self.qkv.product(self.attention_norm(x)))
        rope_in_place(qkv, *rotation, self.num_heads)
        attended = self.output.product(encoder_attention(qkv, *within, self.num_heads, 1.0))
        x = x + self.attention_end_norm(attended)
        wide = self.gate_up.product(self.mlp_norm(x))
        made: torch.Tensor = x + self.mlp_end_norm(self.down.product(gated_activation(wide, self.gate)))
        return made

    def _normed(self, qkv: torch.Tensor) -> torch.Tensor:
        """[T, 3 * H * D] -> the same with each head normalised, and of queries and keys the first elements of the pairs
        of both halves in front of the second ones, as they are rotated."""
        num_tokens = qkv.shape[0]
        parts = qkv.view(num_tokens, 3, -1, self.head_dim).unbind(1)
        norms: tuple[RMSNorm | GainlessNorm, ...] = (self.query_norm, self.key_norm, self.value_norm)
        heads = [norm(part.contiguous()) for norm, part in zip(norms, parts, strict=True)]
        queries, keys, values = (one.view(num_tokens, -1, *QUARTERS, self.head_dim // 4) for one in heads)
        return torch.stack((queries.transpose(2, 3), keys.transpose(2, 3), values), 1).view(num_tokens, -1)


class Standard(ShardedModule):
    """A learned mean and factor of each element."""

    def __init__(self, context: BuildContext, size: int) -> None:
        super().__init__()
        for name in ("mean", "factor"):
            self.declare(name, context.dtype, (Part("", (whole(size),)),))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [T, size] -> the same shape"""
        return (x - self.stored("mean").float()) * self.stored("factor").float()


class Gemma4Tower(Tower):
    def __init__(self, spec: Gemma4TowerSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, channels_last=True, bias=False))
        self.positions = AxisPositions(context, spec.num_positions, spec.hidden_size, axis_first=True)
        self.blocks = nn.ModuleList(Gemma4Block(context.at(f"blocks.{n}"), spec) for n in range(spec.num_blocks))
        self.standard = Standard(context, spec.hidden_size) if spec.standardizes else None
        self.norm = GainlessNorm(context, spec.hidden_size, spec.norm_eps)
        self.projection = ReplicatedLinear(context.at("projection"), spec.hidden_size, spec.output_size)
        self._rotary = PatchRotary(spec.head_dim, spec.rope_theta, context.device)
        self._factor = math.sqrt(spec.hidden_size)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`. Averages are float32 until they are standardised: 16 bits may not hold them."""
        where = places(grids, self.spec.merge_size, x.device)
        rotation = self._rotary(where._replace(indices=where.indices.flip(0)))
        within = runs([rows * columns for _, rows, columns in grids], x.device)
        x = x + self.positions(where)
        for block in self.blocks:
            x = block(x, rotation, within)
        pooled = x.view(-1, self.spec.merge_size**2, x.shape[1]).float().mean(1).to(x.dtype).float() * self._factor
        if self.standard is not None:
            pooled = self.standard(pooled)
        return self.projection.product(self.norm(pooled.to(x.dtype)))


class NormedPatches(PatchEmbedding):
    """Patches whose pixels are normalised all together before they are multiplied."""

    def __init__(self, context: BuildContext, spec: Gemma4PatchSpec) -> None:
        super().__init__(context, spec, channels_last=True)
        self.norm = LayerNorm(context, spec.patch_numbers, PATCH_EPS)

    def rows(self, pixels: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(super().rows(pixels))
        return normed


class Gemma4Patches(Tower):
    """Each patch becomes a row by itself."""

    def __init__(self, spec: Gemma4PatchSpec, context: BuildContext) -> None:
        super().__init__(spec, NormedPatches(context.at("patches"), spec))
        self.patch_norm = LayerNorm(context, spec.hidden_size, PATCH_EPS)
        self.positions = AxisPositions(context, spec.num_positions, spec.hidden_size, axis_first=False)
        self.norm = LayerNorm(context, spec.hidden_size, PATCH_EPS)
        self.row_norm = GainlessNorm(context, spec.hidden_size, spec.norm_eps)
        self.projection = ReplicatedLinear(context.at("projection"), spec.hidden_size, spec.output_size)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        placed = self.patch_norm(x) + self.positions(places(grids, 1, x.device))
        return self.projection.product(self.row_norm(self.norm(placed)))
