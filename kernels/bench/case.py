"""A measured operation: its shape, its floor, and how to make its arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from quire.kernels.bench.cost import Cost
from quire.kernels.bench.stopwatch import Call


class Pair(NamedTuple):
    """The operation and torch's own on the same arguments; each returns what is compared, or None."""

    ours: Call
    peer: Call


@dataclass(frozen=True, slots=True)
class Case:
    """One operation at one shape."""

    operation: str
    shape: str
    cost: Cost
    make: Callable[[torch.device], Pair]
    """Allocates arguments of its own in each call."""
    peer_waits: bool = False
    """torch's form waits for the device, so it cannot be recorded."""
    tolerance: float | None = 0.02
    """Limit of the relative error of the operation against torch's form; None: they return nothing that compares."""
    footprint: int = 0
    """Bytes of the arguments, where they are more than what is moved."""
    int8: bool = False
    """Its arithmetic is that of integers."""


def normal(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=dtype)
