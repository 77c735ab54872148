"""A parameter's declaration: its shape on this rank, and which regions of which checkpoint tensors fill it."""

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
    """One rank's run of a logical axis: indices start..stop-1 of `full`, of which those from `full` on are padding."""

    full: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def filled(self) -> int:
        """Indices that are no padding."""
        return min(self.stop, self.full) - min(self.start, self.full)

    def grouped(self, size: int) -> "Slice":
        """The same run where `size` indices are stored as one, the last of which may stand for fewer.

        ModelError for a run that begins or ends inside of one.
        """
        if self.start % size or (self.stop % size and self.stop != self.full):
            raise ModelError(
                "tensor_parallel_size",
                f"{self.start}..{self.stop} of {self.full} would be one rank's, but the checkpoint stores {size} at a "
                "time; choose one that divides into whole groups",
            )
        return Slice(-(-self.full // size), self.start // size, -(-self.stop // size))


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
class Part:
    """One tensor's share in a parameter."""

    name: str
    """Name of one of several merged tensors ("q", "gate", "3.gate"); empty when the parameter is one tensor."""
    axes: tuple[Slice, ...]
    axis: int = 0
    """Axis along which it is merged with others: in the parameter, and in a checkpoint that stores them as one."""
    offset: int = 0
    """Index on that axis of the parameter where its share begins."""
    index: tuple[int, ...] = ()
    """Indices on axes that the parameter has in front of the tensor's: an expert's number."""

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the whole checkpoint tensor."""
        return tuple(axis.full for axis in self.axes)

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The region of the parameter that it fills, a view."""
        region: list[int | slice] = [*self.index]
        for number, axis in enumerate(self.axes):
            begin = self.offset if number == self.axis else 0
            region.append(slice(begin, begin + axis.filled))
        return parameter[tuple(region)]

    @property
    def num_elements(self) -> int:
        """Elements that this rank reads."""
        return prod(axis.filled for axis in self.axes)


class ShardedModule(nn.Module):
    """A module whose parameters are declared: the loader obeys `parts` and knows nothing else of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, tuple[Part, ...]] = {}

    def declare(
        self, name: str, dtype: torch.dtype, parts: tuple[Part, ...], shape: tuple[int, ...] | None = None
    ) -> None:
        """Register parameter `name` on the meta device, made of `parts`.

        `shape`: of the parameter, when it is more than its parts side by side; the loader fills the rest with zeros.
        """
        if shape is None:
            first, last = parts[0], parts[-1]
            shape = tuple(axis.length for axis in first.axes)
            end = last.offset + last.axes[last.axis].length
            shape = (*shape[: first.axis], end, *shape[first.axis + 1 :])
        self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False))
        self.parts[name] = parts

    def stored(self, name: str) -> torch.Tensor:
        """A parameter; several times faster than the attribute, and a step reads a hundred."""
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter

    def finish(self) -> None:
        """Called once, when its own parameters are filled: a module that stores them otherwise changes them now."""


def consecutive(slices: tuple[tuple[str, Slice], ...], *others: Slice, axis: int = 0) -> tuple[Part, ...]:
    """Parts side by side: each named slice is that axis of its tensor, `others` are the axes around it."""
    parts, offset = [], 0
    for name, run in slices:
        parts.append(Part(name, (*others[:axis], run, *others[axis:]), axis, offset))
        offset += run.length
    return tuple(parts)
