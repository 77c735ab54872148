"""The vision tower of Gemma 3 (Gemma Team, 2025): SigLIP's over the patches of an image, and a row of the decoder for
the average of each square of them."""

from collections.abc import Sequence

import torch

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import RMSNorm
from quire.worker.models.vision.siglip.tower import SiglipTower
from quire.worker.specs.sighted.gemma3 import Gemma3VisionSpec


class Gemma3Tower(SiglipTower):
    def __init__(self, spec: Gemma3VisionSpec, context: BuildContext) -> None:
        super().__init__(spec, context, spec.side)
        self.soft_norm = RMSNorm(context, spec.hidden_size, spec.norm_eps, "rms_from_one")
        self.projection = ReplicatedLinear(context.at("projection"), spec.hidden_size, spec.output_size, bias=False)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`. All items are of one size."""
        square = self.spec.merge_size**2
        pooled = self.encoded(x, grids).view(-1, square, x.shape[1]).mean(1)
        return self.projection.product(self.soft_norm(pooled))
