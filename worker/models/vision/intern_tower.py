"""The vision tower of InternVL (Chen et al., 2024): blocks over the patches of a tile and one token for all of it, and
rows of a decoder made of squares of the patches."""

from collections.abc import Sequence

import torch
from torch import nn

from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.linear.activation import activation
from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Table
from quire.worker.layers.linear import MergedLinear, ReplicatedLinear, RowLinear
from quire.worker.layers.norm import LayerNorm, RMSNorm
from quire.worker.models.vision.block import HEADS, Norm, PlainMLP, Runs, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import places
from quire.worker.models.vision.tower import Tower
from quire.worker.models.vision.vector import Vector
from quire.worker.specs.sighted.internvl import PROJECTOR_EPS, QK_EPS, InternVisionSpec


class InternBlock(nn.Module):
    """Attention within each tile and feed-forward, each behind a norm and scaled before it is added."""

    def __init__(self, context: BuildContext, spec: InternVisionSpec) -> None:
        super().__init__()
        hidden, norm = spec.hidden_size, _norm(spec)
        self.attention_norm = norm(context, hidden, spec.norm_eps)
        self.qkv = MergedLinear(context.at("qkv"), hidden, hidden, ("q", "k", "v"), HEADS, spec.qkv_bias)
        self.query_norm = RMSNorm(context, hidden, QK_EPS) if spec.qk_norm else None
        self.key_norm = RMSNorm(context, hidden, QK_EPS) if spec.qk_norm else None
        self.output = RowLinear(context.at("output"), hidden, hidden, HEADS, bias=True)
        self.attention_scale = Vector(context, hidden)
        self.mlp_norm = norm(context, hidden, spec.norm_eps)
        self.mlp = PlainMLP(context.at("mlp"), spec)
        self.mlp_scale = Vector(context, hidden)
        self.num_heads, self.scale = context.share(HEADS, spec.num_heads).length, spec.head_dim**-0.5

    def forward(self, x: torch.Tensor, within: Runs) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `within`: the runs of tokens that see each other."""
        qkv = self.qkv.product(self.attention_norm(x))
        if self.query_norm is not None and self.key_norm is not None:
            query, key, value = qkv.chunk(3, dim=-1)
            qkv = torch.cat((self.query_norm(query.contiguous()), self.key_norm(key.contiguous()), value), dim=-1)
        attended = self.output.product(encoder_attention(qkv, *within, self.num_heads, self.scale))
        x = torch.addcmul(x, attended, self.attention_scale.stored("weight"))
        return torch.addcmul(x, self.mlp(self.mlp_norm(x)), self.mlp_scale.stored("weight"))


class Projector(nn.Module):
    """Rows of the decoder, out of the patches of each square."""

    def __init__(self, context: BuildContext, spec: InternVisionSpec) -> None:
        super().__init__()
        self.norm = LayerNorm(context, spec.merged_size, PROJECTOR_EPS)
        self.up = ReplicatedLinear(context.at("up"), spec.merged_size, spec.output_size, bias=True)
        self.down = ReplicatedLinear(context.at("down"), spec.output_size, spec.output_size, bias=True)
        self.kind = spec.projector_activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, merged] -> [T, output]"""
        return self.down.product(activation(self.up.product(self.norm(x)), self.kind))


class InternTower(Tower):
    def __init__(self, spec: InternVisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, over_time=False))
        self.side = spec.side
        self.whole = Vector(context, spec.hidden_size)
        """The token for all of a tile, which stands before its patches."""
        self.positions = Table(context, 1 + spec.side**2, spec.hidden_size)
        self.blocks = nn.ModuleList(InternBlock(context.at(f"blocks.{n}"), spec) for n in range(spec.num_blocks))
        self.norm = LayerNorm(context, spec.hidden_size, spec.norm_eps) if spec.last_norm else None
        self.projector = Projector(context.at("projector"), spec)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`. All items are tiles of one size."""
        assert all(grid == (1, self.side, self.side) for grid in grids)
        patches = x.view(len(grids), -1, x.shape[1])
        whole = self.whole.stored("weight").expand(len(grids), 1, -1)
        x = (torch.cat((whole, patches), dim=1) + self.positions(self._order(x.device))).flatten(0, 1)
        within = runs([1 + self.side**2] * len(grids), x.device)
        for block in self.blocks:
            x = block(x, within)
        x = x if self.norm is None else self.norm(x)
        squares = x.view(len(grids), -1, x.shape[1])[:, 1:].reshape(-1, self.spec.merged_size)
        made: torch.Tensor = self.projector(squares)
        return made

    def _order(self, device: torch.device) -> torch.Tensor:
        """int64 [1 + side²]: where in the table a tile's tokens have their positions: patches lie there row by row."""
        row, column = places([(1, self.side, self.side)], self.spec.merge_size, device).indices
        return torch.cat((row.new_zeros(1), 1 + row * self.side + column))


def _norm(spec: InternVisionSpec) -> Norm:
    return RMSNorm if spec.rms_norm else LayerNorm
