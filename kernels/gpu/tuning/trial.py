"""A shape of an operation whose tiles are worth measuring."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quire.kernels.gpu.tile_table import Tiles


@dataclass(frozen=True, slots=True)
class Trial:
    """The candidates of one shape, and how to launch them."""

    operation: str
    shape: str
    candidates: tuple[Tiles, ...]
    floor_bytes: int
    """Bytes any form must move."""
    prepare: Callable[[torch.device], Callable[[Tiles], object]]
    """Allocates the arguments on a device and returns a launch with given tiles."""
