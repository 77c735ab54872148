"""A parameter's declaration: its shape on this rank, and which region of which checkpoint tensors fills it."""

from dataclasses import dataclass
from math import prod

import torch
from torch import nn


class ModelError(ValueError):
    """A model that this engine cannot serve, or not on this many ranks: names the field, its value and a remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Slice:
    """One rank's run of a logical axis: indices start..stop-1 of `full`."""

    full: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def whole(full: int) -> Slice:
    """An axis that every rank holds completely."""
    return Slice(full, 0, full)


def even(axis: str, full: int, rank: int, size: int) -> Slice:
    """An axis dealt out in equal runs; `axis` is its name in messages."""
    if full % size:
        raise ModelError(
            axis, f"{full} cannot be divided among {size} ranks; choose a tensor_parallel_size dividing it"
        )
    return Slice(full, rank * full // size, (rank + 1) * full // size)


@dataclass(frozen=True, slots=True)
class ShardPart:
    """One checkpoint tensor's share in a parameter: its region goes to the rows from `offset` on."""

    name: str
    """Name of one of several merged tensors ("q", "gate"); empty when the parameter is one tensor."""
    axes: tuple[Slice, ...]
    offset: int = 0

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the whole checkpoint tensor."""
        return tuple(axis.full for axis in self.axes)

    @property
    def region(self) -> tuple[slice, ...]:
        """The region that this rank reads of it."""
        return tuple(slice(axis.start, axis.stop) for axis in self.axes)

    @property
    def rows(self) -> slice:
        """The parameter's rows that it fills."""
        return slice(self.offset, self.offset + self.axes[0].length)

    @property
    def num_elements(self) -> int:
        return prod(axis.length for axis in self.axes)


class ShardedModule(nn.Module):
    """A module whose parameters are declared: the loader obeys `parts` and knows nothing else of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, tuple[ShardPart, ...]] = {}

    def declare(self, name: str, dtype: torch.dtype, parts: tuple[ShardPart, ...], num_rows: int | None = None) -> None:
        """Register parameter `name` on the meta device, made of `parts` along its first axis.

        `num_rows`: of the parameter, when it is longer than its parts; the loader fills the rest with zeros.
        """
        rows = parts[-1].rows.stop if num_rows is None else num_rows
        shape = (rows, *(axis.length for axis in parts[0].axes[1:]))
        self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False))
        self.parts[name] = parts

    def stored(self, name: str) -> torch.Tensor:
        """A parameter; several times faster than the attribute, and a step reads a hundred."""
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter

    def finish(self) -> None:
        """Called once, when the parameters are filled: a layer that stores them otherwise changes them now."""


def consecutive(slices: tuple[tuple[str, Slice], ...], *others: Slice) -> tuple[ShardPart, ...]:
    """Parts one under the other: each named slice is the first axis of its tensor, `others` the axes after it."""
    parts, offset = [], 0
    for name, first in slices:
        parts.append(ShardPart(name, (first, *others), offset))
        offset += first.length
    return tuple(parts)
