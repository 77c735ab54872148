"""The vision tower of Pixtral (Agrawal et al., 2024), and the projectors of Pixtral 12B and of Mistral 3, which makes a
row of each square of patches."""

from collections.abc import Sequence

import torch
from torch import nn

from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_angles import rope_angles
from quire.kernels.attention.rope_in_place import rope_in_place
from quire.kernels.linear.activation import activation, gated_activation
from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import MergedLinear, ReplicatedLinear, RowLinear
from quire.worker.layers.norm import RMSNorm
from quire.worker.models.vision.block import HEADS, INNER, Runs, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import Places, places
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.sighted.mistral3 import PixtralSpec


class PixtralBlock(nn.Module):
    """Attention within each item and a gated feed-forward, each behind a norm; no product has a bias."""

    def __init__(self, context: BuildContext, spec: PixtralSpec) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self.attention_norm = RMSNorm(context, hidden, spec.norm_eps)
        self.qkv = MergedLinear(context.at("qkv"), hidden, hidden, ("q", "k", "v"), HEADS)
        self.output = RowLinear(context.at("output"), hidden, hidden, HEADS)
        self.mlp_norm = RMSNorm(context, hidden, spec.norm_eps)
        self.gate_up = MergedLinear(context.at("gate_up"), hidden, inner, ("gate", "up"), INNER)
        self.down = RowLinear(context.at("down"), inner, hidden, INNER)
        self.num_heads = context.share(HEADS, spec.num_heads).length
        self.scale, self.gate = spec.head_dim**-0.5, spec.gate

    def forward(self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], within: Runs) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `within`: the patches of each item."""
        qkv = self.qkv.product(self.attention_norm(x))
        rope_in_place(qkv, *rotation, self.num_heads)
        attended = self.output.product(encoder_attention(qkv, *within, self.num_heads, self.scale))
        normed, x = self.mlp_norm.add(attended, x)
        return x + self.down.product(gated_activation(self.gate_up.product(normed), self.gate))


class Projector(nn.Module):
    """Rows of the decoder, out of patches."""

    def __init__(self, context: BuildContext, spec: PixtralSpec) -> None:
        super().__init__()
        hidden, wide, bias = spec.hidden_size, spec.output_size, spec.projector_bias
        self.norm = RMSNorm(context, hidden, spec.projector_eps) if spec.merges else None
        self.merge = ReplicatedLinear(context.at("merge"), spec.merged_size, hidden) if spec.merges else None
        self.up = ReplicatedLinear(context.at("up"), hidden, wide, bias)
        self.down = ReplicatedLinear(context.at("down"), wide, wide, bias)
        self.kind = spec.activation
        self._square = spec.merge_size**2, hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T / merge², output]"""
        if self.norm is not None and self.merge is not None:
            squares = self.norm(x).view(-1, *self._square)
            x = self.merge.product(squares.transpose(1, 2).flatten(1))  # an element of all patches, then the next
        return self.down.product(activation(self.up.product(x), self.kind))


class PixtralRotary:
    """Angles by row and by column: the two take turns in the frequencies of a head, and each has half of its pairs."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self._frequencies = torch.cat((frequencies[0::2], frequencies[1::2])).to(device)
        self._pair_axes = torch.arange(2).repeat_interleave(head_dim // 4).to(device)

    def __call__(self, where: Places) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin float32 [T, head_dim / 2]"""
        return rope_angles(where.indices, self._frequencies, self._pair_axes, 1.0)


class PixtralTower(Tower):
    def __init__(self, spec: PixtralSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, over_time=False, bias=False))
        self.norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.blocks = nn.ModuleList(PixtralBlock(context.at(f"blocks.{n}"), spec) for n in range(spec.num_blocks))
        self.projector = Projector(context.at("projector"), spec)
        self._num_run = spec.num_run
        self._rotary = PixtralRotary(spec.head_dim, spec.rope_theta, context.device)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        rotation = self._rotary(places(grids, self.spec.merge_size, x.device))
        within = runs([rows * columns for _, rows, columns in grids], x.device)
        x = self.norm(x)
        for block in self.blocks[: self._num_run]:
            x = block(x, rotation, within)
        made: torch.Tensor = self.projector(x)
        return made
