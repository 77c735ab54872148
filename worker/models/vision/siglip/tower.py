"""SigLIP's vision tower (Zhai et al., 2023) over items of one size, the patches of each square together."""

from abc import ABC
from collections.abc import Sequence

import torch
from torch import nn

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Table
from quire.worker.layers.norm import LayerNorm
from quire.worker.models.vision.block import PlainMLP, TowerBlock, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import places
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.vision_spec import VisionSpec


class SiglipTower(Tower, ABC):
    """Blocks that see the patches of an item, and a norm behind them."""

    def __init__(self, spec: VisionSpec, context: BuildContext, side: int) -> None:
        """`side`: patches of an item's side."""
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, over_time=False))
        self.side = side
        self.positions = Table(context, side**2, spec.hidden_size)
        self.blocks = nn.ModuleList(
            TowerBlock(at, spec, LayerNorm, PlainMLP(at.at("mlp"), spec))
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.norm = LayerNorm(context, spec.hidden_size, spec.norm_eps)

    def encoded(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """Embedded patches [T, hidden] -> the same behind the last norm. All items are of one size."""
        assert all(grid == (1, self.side, self.side) for grid in grids)
        area = self.side**2
        row, column = places([(1, self.side, self.side)], self.spec.merge_size, x.device).indices
        x = (x.view(-1, area, x.shape[1]) + self.positions(row * self.side + column)).flatten(0, 1)
        within = runs([area] * len(grids), x.device)
        for block in self.blocks:
            x = block(x, None, within)
        encoded: torch.Tensor = self.norm(x)
        return encoded
