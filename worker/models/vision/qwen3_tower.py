"""The vision tower of Qwen3-VL: blocks over the patches of each item, and rows of a decoder made of squares of them,
of the last block's and of some before (DeepStack, Meng et al., 2024)."""

from collections.abc import Sequence

import torch
from torch import nn

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.norm import LayerNorm
from quire.worker.models.vision.block import PlainMLP, TowerBlock, runs
from quire.worker.models.vision.merger import Merger
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import PatchRotary, PositionGrid, places
from quire.worker.models.vision.tower import Tower
from quire.worker.specs.sighted.qwen3_vl import Qwen3VisionSpec


class Qwen3Tower(Tower):
    def __init__(self, spec: Qwen3VisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec))
        self.positions = PositionGrid(context, spec.grid_side, spec.hidden_size)
        self.blocks = nn.ModuleList(
            TowerBlock(at, spec, LayerNorm, PlainMLP(at.at("mlp"), spec))
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.merger = Merger(context.at("merger"), spec, LayerNorm, spec.hidden_size)
        self.deepstack = nn.ModuleList(
            Merger(context.at(f"deepstack.{number}"), spec, LayerNorm, spec.merged_size)
            for number in range(len(spec.deepstack))
        )
        self._deepened = spec.deepstack
        self._rotary = PatchRotary(spec.head_dim, spec.rope_theta, context.device)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        where = places(grids, self.spec.merge_size, x.device)
        x = x + self.positions.interpolated(where).to(x.dtype)
        rotation = self._rotary(where)
        within = runs([rows * columns for _, rows, columns in grids], x.device)
        merged: list[torch.Tensor] = []
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, within)
            if number in self._deepened:
                merged.append(self.deepstack[len(merged)](x))
        return torch.cat((self.merger(x), *merged), dim=-1)
