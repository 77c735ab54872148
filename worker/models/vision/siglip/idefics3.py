"""The vision tower of Idefics3 (Laurençon et al., 2024) and SmolVLM: SigLIP's over the patches of a tile, and a row of
the decoder for each square of them, out of all that they hold."""

from collections.abc import Sequence

import torch

from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.models.vision.siglip.tower import SiglipTower
from quire.worker.specs.sighted.idefics3 import IdeficsVisionSpec


class IdeficsTower(SiglipTower):
    """A patch has the position of its place in the tile, whatever the dtype: in 16 bits transformers rounds the places
    themselves, so that some patches share one; the models were trained with whole ones."""

    def __init__(self, spec: IdeficsVisionSpec, context: BuildContext) -> None:
        super().__init__(spec, context, spec.side)
        self.projection = ReplicatedLinear(context.at("projection"), spec.merged_size, spec.output_size)

    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """See `Tower`. All items are tiles of one size."""
        return self.projection.product(self.encoded(x, grids).view(-1, self.spec.merged_size))
