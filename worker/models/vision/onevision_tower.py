"""The vision towers of LLaVA-OneVision (Li et al., 2024) and LLaVA-NeXT (Liu et al., 2024): blocks of SigLIP (Zhai et
al., 2023) or CLIP (Radford et al., 2021) over the patches of a tile, and the rows of a decoder that are laid out of all
tiles of an item."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import interpolate

from quire.kernels.linear.activation import activation
from quire.proto.messages.media import PLAIN, Grid, num_patches
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Table
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import LayerNorm
from quire.worker.models.vision.block import PlainMLP, TowerBlock, runs
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.tower import Tower
from quire.worker.models.vision.vector import Vector
from quire.worker.specs.sighted.llava_next import LlavaNextSpec
from quire.worker.specs.sighted.llava_onevision import OF_FRAME, OneVisionSpec


class Projector(nn.Module):
    """A row of the decoder, out of each patch."""

    def __init__(self, context: BuildContext, spec: OneVisionSpec) -> None:
        super().__init__()
        wide, bias = spec.output_size, spec.projector_bias
        self.up = ReplicatedLinear(context.at("up"), spec.num_features, wide, bias)
        self.down = ReplicatedLinear(context.at("down"), wide, wide, bias)
        self.kind = spec.projector_activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, features] -> [T, output]"""
        return self.down.product(activation(self.up.product(x), self.kind))


class OneVisionTower(Tower):
    def __init__(self, spec: OneVisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, over_time=False, bias=not spec.class_token))
        self.side, self.pooled_side = spec.side, spec.pooled_side
        self.positions = Table(context, spec.area + spec.class_token, spec.hidden_size)
        self.blocks = nn.ModuleList(
            TowerBlock(at, spec, LayerNorm, PlainMLP(at.at("mlp"), spec))
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.projector = Projector(context.at("projector"), spec)
        self.line_end = Vector(context, spec.output_size) if spec.has_lines else None
        """The row behind each line of a picture, and behind a video."""

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        items = self.projector(self.features(x)).split([num_patches(grid) for grid in grids])
        return torch.cat([self._laid_out(item, grid) for item, grid in zip(items, grids, strict=True)])

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Embedded patches [T, hidden], tile after tile -> [T, features]"""
        area = self.side**2
        positions = self.positions(torch.arange(area, device=x.device))
        x = (x.view(-1, area, x.shape[1]) + positions).flatten(0, 1)
        within = runs([area] * (len(x) // area), x.device)
        for block in self.blocks:
            x = block(x, None, within)
        return x

    def _laid_out(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Rows of an item's patches, tile after tile [T, output] -> those of the item."""
        if len(grid) == PLAIN:
            return x
        assert self.line_end is not None
        if len(grid) == OF_FRAME:
            pooled = interpolate(self._picture(x, 1)[None], [self.pooled_side] * 2, mode="bilinear")[0]
            return torch.cat((pooled.flatten(1).T, self.line_end.stored("weight").expand(grid[-1], -1)))
        columns, tall, wide, lines, length = grid[PLAIN:]
        picture = self._picture(x[self.side**2 :], columns)
        top, left = (picture.shape[1] - tall) // 2, (picture.shape[2] - wide) // 2
        picture = picture[:, top : top + tall, left : left + wide]
        if (lines, length) != (tall, wide):
            picture = interpolate(picture[None], [lines, length], mode="bilinear")[0]
        ends = self.line_end.stored("weight")[:, None, None].expand(-1, lines, 1)
        return torch.cat((x[: self.side**2], torch.cat((picture, ends), dim=2).flatten(1).T))

    def _picture(self, tiles: torch.Tensor, columns: int) -> torch.Tensor:
        """Rows of tiles of which so many stand side by side -> [output, rows, columns] of their patches."""
        side = self.side
        apart = tiles.view(-1, columns, side, side, tiles.shape[1])
        return apart.permute(4, 0, 2, 1, 3).flatten(1, 2).flatten(2, 3)


class LlavaNextTower(OneVisionTower):
    """The same, but that patches are taken behind some of the blocks; CLIP's stand behind a token of their tile."""

    def __init__(self, spec: LlavaNextSpec, context: BuildContext) -> None:
        super().__init__(spec, context)
        self.class_token = Vector(context, spec.hidden_size) if spec.class_token else None
        self.norm = LayerNorm(context, spec.hidden_size, spec.norm_eps) if spec.class_token else None
        self._num_places, self._features = spec.area + spec.class_token, spec.features
        self._scale = spec.row_scale

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        rows = super().rows(x, grids)
        return rows if self._scale == 1.0 else rows * self._scale

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Embedded patches [T, hidden], tile after tile -> [T, features]"""
        tiles, places = x.view(-1, self.side**2, x.shape[1]), self._num_places
        if self.class_token is not None:
            tiles = torch.cat((self.class_token.stored("weight").expand(len(tiles), 1, -1), tiles), dim=1)
        x = (tiles + self.positions(torch.arange(places, device=x.device))).flatten(0, 1)
        x = x if self.norm is None else self.norm(x)
        within = runs([places] * len(tiles), x.device)
        behind = {0: x}
        for number, block in enumerate(self.blocks[: max(self._features)], 1):
            x = block(x, None, within)
            if number in self._features:
                behind[number] = x
        taken = torch.cat([behind[number] for number in self._features], dim=1)
        return taken.view(len(tiles), places, -1)[:, places - self.side**2 :].flatten(0, 1)
