"""A vision tower as the worker knows it: pixels in, rows of a decoder out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from quire.proto.messages.media import Grid
from quire.worker.models.vision.patches import PatchEmbedding
from quire.worker.specs.kinds.normalization import Normalization
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec


class Tower(nn.Module, ABC):
    """The same on every rank, to which items are dealt; or divided: then all ranks encode all items together."""

    def __init__(self, spec: VisionSpec, patches: PatchEmbedding) -> None:
        super().__init__()
        self.spec = spec
        self.patches = patches

    def normalize(self, normalization: Normalization) -> None:
        """Set what bytes stand for, before the first item."""
        self.patches.normalize(normalization)

    def forward(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """Items and their grids -> [tokens of all, row_size] of the model's dtype, item after item.

        pixels uint8 [frames, rows * patch, columns * patch, 3] on the device, of one frame or `temporal_patch_size`. A
        row is the token's embedding, and then what is added to it behind each of the decoder's first layers.
        """
        size = self.spec.patch_size
        for item, (frames, rows, columns, *_) in zip(pixels, grids, strict=True):
            assert frames in (1, self.spec.temporal_patch_size)
            assert item.shape == (frames, rows * size, columns * size, CHANNELS)
        return self.rows(self.patches(pixels), grids)

    @abstractmethod
    def rows(self, x: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """Embedded patches [T, hidden], those of a merged square together -> [rows of all items, row_size]."""
