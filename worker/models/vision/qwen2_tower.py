"""The vision towers of Qwen2-VL (Wang et al., 2024) and Qwen2.5-VL (Bai et al., 2025): blocks over the patches of each
item, in the newer one mostly over those of its windows, and a merger that makes rows of a decoder of squares."""

from collections.abc import Sequence

import torch
from torch import nn

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.norm import LayerNorm, RMSNorm
from quire.worker.models.vision.block import GatedMLP, PlainMLP, TowerBlock, runs
from quire.worker.models.vision.merger import Merger
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.models.vision.positions import PatchRotary, Places, places
from quire.worker.models.vision.tower import Tower
from quire.worker.models.vision.windows import windows
from quire.worker.specs.sighted.qwen2_5_vl import Qwen25VisionSpec
from quire.worker.specs.sighted.qwen2_vl import Qwen2VisionSpec


class Qwen2Tower(Tower):
    def __init__(self, spec: Qwen2VisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, bias=False))
        self.blocks = nn.ModuleList(
            TowerBlock(at, spec, LayerNorm, PlainMLP(at.at("mlp"), spec))
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.merger = Merger(context.at("merger"), spec, LayerNorm, spec.hidden_size)
        self._rotary = PatchRotary(spec.head_dim, spec.rope_theta, context.device)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        rotation = self._rotary(places(grids, self.spec.merge_size, x.device))
        within = runs([rows * columns for _, rows, columns in grids], x.device)
        for block in self.blocks:
            x = block(x, rotation, within)
        merged: torch.Tensor = self.merger(x)
        return merged


class Qwen25Tower(Tower):
    """Patches lie window after window from the first block to the merger."""

    def __init__(self, spec: Qwen25VisionSpec, context: BuildContext) -> None:
        super().__init__(spec, PatchEmbedding(context.at("patches"), spec, bias=False))
        self.blocks = nn.ModuleList(
            TowerBlock(at, spec, RMSNorm, GatedMLP(at.at("mlp"), spec, spec.activation))
            for at in (context.at(f"blocks.{number}") for number in range(spec.num_blocks))
        )
        self.merger = Merger(context.at("merger"), spec, RMSNorm, spec.hidden_size)
        self._window, self._whole_blocks = spec.window, spec.whole_blocks
        self._rotary = PatchRotary(spec.head_dim, spec.rope_theta, context.device)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`."""
        merge = self.spec.merge_size
        dealt = windows(grids, merge, self._window, x.device)
        patches = (dealt.order[:, None] * merge**2 + torch.arange(merge**2, device=x.device)).flatten()
        rotation = self._rotary(Places(*(one[:, patches] for one in places(grids, merge, x.device))))
        x = x[patches]
        whole = runs([rows * columns for _, rows, columns in grids], x.device)
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, whole if number in self._whole_blocks else dealt.runs)
        merged: torch.Tensor = self.merger(x)
        return merged[dealt.order.argsort()]
