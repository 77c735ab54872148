"""Positions of patches: where each stands in its item, the learned ones of a grid of any size, and rotary ones."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import grid_sample

from quire.kernels.attention.rope_angles import rope_angles
from quire.proto.messages.media import Grid
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Table
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule


class Places(NamedTuple):
    """The places of patches, item after item, those of a merged square together. Both int64 [2, T]."""

    indices: torch.Tensor
    """Row and column in the item."""
    extents: torch.Tensor
    """Rows and columns of the item."""


def places(grids: Sequence[Grid], merge: int, device: torch.device) -> Places:
    """The places of all patches. They are made on the device, which the host need not wait for."""
    indices, extents = [], []
    for _, num_rows, num_columns in grids:
        shape = (num_rows // merge, num_columns // merge, merge, merge)
        rows = torch.arange(num_rows, device=device).view(num_rows // merge, 1, merge, 1)
        columns = torch.arange(num_columns, device=device).view(num_columns // merge, 1, merge)
        indices.append(torch.stack((rows.expand(shape), columns.expand(shape))).flatten(1))
        count = indices[-1].shape[1]
        extents.append(torch.stack([torch.full((count,), one, device=device) for one in (num_rows, num_columns)]))
    return Places(torch.cat(indices, dim=1), torch.cat(extents, dim=1))


class PositionGrid(Table):
    """Learned positions of a square grid, whole on every rank."""

    def __init__(self, context: BuildContext, side: int, hidden: int) -> None:
        super().__init__(context, side**2, hidden)
        self.side = side

    def interpolated(self, where: Places) -> torch.Tensor:
        """Bilinear between the corners of both grids -> float32 [T, hidden]."""
        found = where.indices.float() * (self.side - 1) / (where.extents - 1).clamp(min=1)
        low = found.floor()
        share = found - low
        near, far = low.long(), (low.long() + 1).clamp(max=self.side - 1)
        total = torch.zeros((), device=found.device)
        for row, of_row in ((near[0], 1 - share[0]), (far[0], share[0])):
            for column, of_column in ((near[1], 1 - share[1]), (far[1], share[1])):
                total = total + self(row * self.side + column).float() * (of_row * of_column)[:, None]
        return total

    def bicubic(self, where: Places) -> torch.Tensor:
        """Cubic between the middles of the squares of both grids, and at their edges as there -> float32 [T, hidden].

        Coordinates are those of torch: the edges of the grid are -1 and 1.
        """
        table = self.stored("weight").float().view(self.side, self.side, -1).permute(2, 0, 1)[None]
        found = (where.indices + 0.5) / where.extents * 2 - 1
        columns_first = found.flip(0).T[None, :, None]
        sampled = grid_sample(table, columns_first, mode="bicubic", padding_mode="border", align_corners=False)
        return sampled[0, :, :, 0].T


class AxisPositions(ShardedModule):
    """Learned positions of columns and of rows, of which a patch has the sum; whole on every rank."""

    def __init__(self, context: BuildContext, size: int, hidden: int, *, axis_first: bool) -> None:
        """`axis_first`: they are stored [2, size, hidden], columns before rows; else [size, 2, hidden]."""
        super().__init__()
        axes = (2, size, hidden) if axis_first else (size, 2, hidden)
        self.declare("weight", context.dtype, (Part("", tuple(map(whole, axes))),))
        self.axis = 0 if axis_first else 1

    def forward(self, where: Places) -> torch.Tensor:
        """[T, hidden]"""
        of_columns, of_rows = self.stored("weight").unbind(self.axis)
        rows, columns = where.indices
        return of_columns.index_select(0, columns) + of_rows.index_select(0, rows)


class PatchRotary:
    """Angles by row and by column: half of a head's pairs turn by each."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        half = head_dim // 2
        frequencies = 1.0 / theta ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
        self._frequencies = torch.cat((frequencies, frequencies)).to(device)
        self._pair_axes = torch.arange(2).repeat_interleave(half // 2).to(device)

    def __call__(self, where: Places) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin float32 [T, head_dim / 2]"""
        return rope_angles(where.indices, self._frequencies, self._pair_axes, 1.0)
