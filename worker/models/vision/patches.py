"""Patches of images as a tower reads them: bytes become numbers by a table, squares of them the tower's rows."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from quire.worker.build_context import BuildContext
from quire.worker.specs.kinds.normalization import Normalization
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule

BYTES = 256


class PatchEmbedding(ShardedModule):
    """A convolution whose steps are as wide as its kernel: one product over all patches."""

    def __init__(
        self,
        context: BuildContext,
        spec: VisionSpec,
        *,
        over_time: bool = True,
        bias: bool = True,
        channels_last: bool = False,
    ) -> None:
        """`over_time`: the kernel has an axis of frames; `channels_last`: it is a matrix for the pixels of one frame, a
        patch's row by row, with the colours of each together."""
        super().__init__()
        self.patch_size, self.merge_size, self.frames = spec.patch_size, spec.merge_size, spec.temporal_patch_size
        self.scheme = context.scheme
        self.channels_last = channels_last
        axes = (spec.hidden_size, CHANNELS, *((self.frames,) if over_time else ()), self.patch_size, self.patch_size)
        axes = (spec.hidden_size, spec.patch_numbers) if channels_last else axes
        self.declare("weight", context.dtype, (Part("", tuple(map(whole, axes))),))
        self.bias: torch.Tensor | None
        self.register_parameter("bias", None)
        if bias:
            self.declare("bias", context.dtype, (Part("", (whole(spec.hidden_size),)),))
        self._dtype = context.dtype
        self._numbers: torch.Tensor | None = None
        self._first = torch.arange(0, CHANNELS * BYTES, BYTES, dtype=torch.int32, device=context.device)

    def finish(self) -> None:
        """The kernel becomes a matrix."""
        self.register_parameter("weight", nn.Parameter(self.stored("weight").flatten(1), requires_grad=False))
        self.scheme.finish(self)

    def normalize(self, normalization: Normalization) -> None:
        """Set what bytes stand for, before the first image."""
        numbers = byte_numbers(normalization).flatten()
        self._numbers = numbers.to(self._first.device, self._dtype)

    def forward(self, pixels: Sequence[torch.Tensor]) -> torch.Tensor:
        """uint8 [frames, rows * patch, columns * patch, 3] each -> [T, hidden], see `rows`."""
        rows = torch.cat([self.rows(item) for item in pixels])
        return self.scheme.apply(self, rows, self.bias)

    def rows(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [frames, rows * patch, columns * patch, 3] -> [rows * columns, 3 * frames * patch * patch].

        The patches of a merged square lie together, squares row after row. One frame alone is repeated.
        """
        assert self._numbers is not None, "normalize comes first"
        size, merge = self.patch_size, self.merge_size
        places = (pixels.int() + self._first).flatten()
        shape = (-1, pixels.shape[1] // (merge * size), merge, size, pixels.shape[2] // (merge * size), merge, size)
        numbers = self._numbers.index_select(0, places).view(*shape, CHANNELS)
        if self.channels_last:
            return numbers.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(-1, size**2 * CHANNELS)
        patches = numbers.permute(1, 4, 2, 5, 7, 0, 3, 6)
        return patches.expand(*patches.shape[:5], self.frames, size, size).reshape(-1, CHANNELS * self.frames * size**2)


def byte_numbers(normalization: Normalization) -> torch.Tensor:
    """The number that each byte of a channel stands for: float32 [3, 256], to the bit as image processors make it."""
    scaled = (np.arange(BYTES, dtype=np.float64) * normalization.factor).astype(np.float32)
    mean, std = (np.array(one, np.float32)[:, None] for one in (normalization.mean, normalization.std))
    return torch.from_numpy((scaled - mean) / std)
