"""The vision tower of Gemma 3 (Gemma Team, 2025): SigLIP's blocks (Zhai et al., 2023) over the patches of an image, and
a row of the decoder for the average of each square of them."""

from collections.abc import Sequence

import torch
from torch import nn

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Table
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import LayerNorm, RMSNorm
from quire.worker.models.vision.block import PlainMLP, TowerBlock, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import places
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.sighted.gemma3 import Gemma3VisionSpec


class Gemma3Tower(Tower):
    def __init__(self, spec: Gemma3VisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, over_time=False))
        self.side = spec.side
        self.positions = Table(context, spec.side**2, spec.hidden_size)
        self.blocks = nn.ModuleList(
            TowerBlock(at, spec, LayerNorm, PlainMLP(at.at("mlp"), spec))
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.norm = LayerNorm(context, spec.hidden_size, spec.norm_eps)
        self.soft_norm = RMSNorm(context, spec.hidden_size, spec.norm_eps, "rms_from_one")
        self.projection = ReplicatedLinear(context.at("projection"), spec.hidden_size, spec.output_size, bias=False)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`. All items are of one size."""
        assert all(grid == (1, self.side, self.side) for grid in grids)
        area, square = self.side**2, self.spec.merge_size**2
        row, column = places([(1, self.side, self.side)], self.spec.merge_size, x.device).indices
        x = (x.view(-1, area, x.shape[1]) + self.positions(row * self.side + column)).flatten(0, 1)
        within = runs([area] * len(grids), x.device)
        for block in self.blocks:
            x = block(x, None, within)
        pooled = self.norm(x).view(-1, square, x.shape[1]).mean(1)
        return self.projection.product(self.soft_norm(pooled))
