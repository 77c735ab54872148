"""Encodes the items of a plan: dealt to the ranks, or by all of them together, and every rank gets all rows."""

import errno
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from quire.proto.messages.media import PLAIN, Encode, Grid, media_file, num_patches
from quire.worker.device.device import Device
from quire.worker.device.marks import Mark
from quire.worker.device.parallel import Group
from quire.worker.media.encoder_memory import EncoderMemory
from quire.worker.specs.vision_spec import VisionSpec
from quire.worker.tables.slot_table import PlanError

_log = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]


class Tower(Protocol):
    """A vision tower as the encoder sees it: the same weights on every rank, or a share of them."""

    def forward(self, pixels: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        """uint8 [frames, rows * patch, columns * patch, 3] each -> [rows of all, width], item after item."""
        ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """The outcome of a plan's encodes: on the host, once a mark made later has passed."""

    lost: torch.Tensor
    """bool [encodes]: items whose file was lost on some rank; their rows mean nothing."""
    mark: Mark
    """The end of this rank's part, timed from its begin."""


class MediaEncoder:
    """One rank's part. Its files lie in `folder`; `most_patches`: those of the largest step."""

    def __init__(
        self,
        tower: Tower,
        memory: EncoderMemory,
        group: Group,
        device: Device,
        folder: Path,
        vision: VisionSpec,
        most_patches: int,
    ) -> None:
        self._tower = tower
        self.memory = memory
        self._group = group
        self._device = device
        self._folder = folder
        self._patch = vision.patch_size
        self._divided = vision.divided
        self.vision = vision
        self.merge = vision.merge_size
        self.most_patches = most_patches
        self.kinds = ("image", "video") if vision.takes_videos else ("image",)

    def encode(self, encodes: Sequence[Encode]) -> Encoded:
        """Queue the work. Raises `PlanError` for pages that do not fit."""
        counts = [self.num_rows(one.grid) for one in encodes]
        numbers = [
            self.memory.row_numbers(one.pages, count, "encodes") for one, count in zip(encodes, counts, strict=True)
        ]
        total = sum(counts)
        begins = np.cumsum([0, *counts])
        items, places, lost = [], [], []
        for index in self._own(encodes):
            found = self._read(encodes[index])
            if found is None:
                lost.append(total + index)
                if not self._divided:
                    continue
                found = np.zeros(self._shape(encodes[index].grid), np.uint8)  # ranks that encode together run alike
            items.append((found, encodes[index].grid))
            places.append(slice(int(begins[index]), int(begins[index + 1])))
        with self._stream() as taken:
            start, begun = self._device.begin(), time.perf_counter()
            # a row more for each item: it travels with the others, and says whether there are any
            made = self._made(items, places, total + len(encodes))
            for row in lost:
                made[row] = 1
            mark = self._device.mark(start, time.perf_counter() - begun)
        self._group.all_reduce(made[total:] if self._divided else made)
        # in the order of the steps: rows of those before may have to read what the pages hold till now
        self.memory.rows.index_copy_(0, self._device.upload(np.concatenate(numbers)), made[:total])
        (are_lost,) = self._device.fetch((made[total:, 0] > 0,))
        taken()
        return Encoded(are_lost, mark)

    def _stream(self) -> AbstractContextManager[Callable[[], None]]:
        """The stream of the tower: beside the step before, unless ranks encode together: sums are in its order."""
        return nullcontext(lambda: None) if self._divided else self._device.encode_stream()

    def _made(self, items: Sequence[tuple[Pixels, Grid]], places: Sequence[slice], num_rows: int) -> torch.Tensor:
        """Queue the tower -> [num_rows, width]: each item's rows at its place, zeros elsewhere."""
        made = self.memory.rows.new_zeros((num_rows, self.memory.rows.shape[1]))
        if items:
            pixels = [self._device.upload(one) for one, _ in items]
            rows, begin = self._tower.forward(pixels, [grid for _, grid in items]), 0
            for place in places:
                end = begin + place.stop - place.start
                made[place] = rows[begin:end]
                begin = end
        return made

    def _own(self, encodes: Sequence[Encode]) -> Sequence[int]:
        """Numbers of the items that this rank encodes."""
        if self._divided:
            return range(len(encodes))
        return dealt([num_patches(one.grid) for one in encodes], self._group.size)[self._group.rank]

    def num_rows(self, grid: Grid) -> int:
        """Raises `PlanError` for a grid that the tower does not take."""
        try:
            return self.vision.num_rows(grid)
        except ValueError as error:
            raise PlanError(f"encodes: {error}") from error

    def encode_blank(self, most_patches: int) -> None:
        """Encode one blank item of nearly so many patches, or as many as there may be of one size, and forget them."""
        side, count = self.vision.tile_side, 1
        if side is None:
            side = max(1, math.isqrt(most_patches) // self.merge) * self.merge
        else:
            count = max(1, most_patches // side**2)
        blank = np.zeros((1, side * self._patch, side * self._patch, 3), np.uint8)
        num_rows = (side // self.merge) ** 2
        places = [slice(one * num_rows, (one + 1) * num_rows) for one in range(count)]
        with self._stream():
            self._made([(blank, (1, side, side))] * count, places, count * num_rows)

    def _read(self, encode: Encode) -> Pixels | None:
        """The item's pixels; None, and a line in the log, where they are not there."""
        shape = self._shape(encode.grid)
        size = math.prod(shape)
        name = media_file(encode.folder, encode.digest)
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "no regular file")
                read = np.fromfile(file, np.uint8, size + 1)
        except OSError as error:
            _log.error("media file %s: %s", name, error.strerror)
            return None
        if read.size != size:
            _log.error("media file %s: it does not have %d bytes", name, size)
            return None
        return read.reshape(shape)

    def _shape(self, grid: Grid) -> tuple[int, int, int, int]:
        """The shape of an item's pixels."""
        frames, rows, columns = grid[:PLAIN]
        return frames, rows * self._patch, columns * self._patch, 3


def dealt(costs: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Items by rank: the costliest first, each to the rank that has the least so far."""
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        rank = loads.index(min(loads))
        ranks[rank].append(item)
        loads[rank] += costs[item]
    return [sorted(items) for items in ranks]
