"""The vision tower of PaliGemma (Beyer et al., 2024): SigLIP's over the patches of an image, and a row of the decoder
for each of them."""

from collections.abc import Sequence

import torch

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.models.vision.siglip.tower import SiglipTower
from quire.worker.specs.sighted.paligemma import PaliGemmaVisionSpec


class PaliGemmaTower(SiglipTower):
    def __init__(self, spec: PaliGemmaVisionSpec, context: BuildContext) -> None:
        super().__init__(spec, context, spec.side)
        self.projection = ReplicatedLinear(context.at("projection"), spec.hidden_size, spec.output_size, bias=True)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`. All items are of one size."""
        return self.projection.product(self.encoded(x, grids))
