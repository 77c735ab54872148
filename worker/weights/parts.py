"""Parts of parameters: which runs of a checkpoint tensor's axes are one rank's, and where in a parameter they lie."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # deploy reads specs, and with them this, in a process that never imports torch
    import torch

STORED: Final = "the checkpoint stores"
"""The one that has indices together, in refusals."""
TIED_ROWS: Final = 16
"""Outputs that a processor multiplies together: rows are looked up in whole blocks of them, and in nothing else."""


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

    def grouped(self, size: int, together: str = STORED) -> Slice:
        """The same run where `size` indices are stored as one, the last of which may stand for fewer.

        ModelError for a run that begins or ends inside of one; `together`: who has them so, in its message.
        """
        if self.start % size or (self.stop % size and self.stop != self.full):
            raise ModelError(
                "tensor_parallel_size",
                f"{self.start}..{self.stop} of {self.full} would be one rank's, but {together} {size} at a time; "
                "choose one that divides into whole groups",
            )
        return self.within(size)

    def within(self, size: int) -> Slice:
        """All groups of `size` indices that the run has any of."""
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


def dealt(full: int, rank: int, size: int) -> Slice:
    """An axis of whole things, dealt out in runs: where they do not divide, the first ranks hold one more."""
    each, more = divmod(full, size)
    start = rank * each + min(rank, more)
    return Slice(full, start, start + each + (rank < more))


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor's share in a parameter."""

    name: str
    """Name of one of several merged tensors ("q", "gate", "3.down"); empty when the parameter is one tensor."""
    axes: tuple[Slice, ...]
    axis: int = 0
    """Axis along which it is merged with others: in the parameter, and in a checkpoint that stores them as one."""
    offset: int = 0
    """Index on that axis of the parameter where its share begins."""
    index: tuple[int, ...] = ()
    """Indices on axes that the parameter has in front of the tensor's: an expert's number."""
    tensor: str = ""
    """Last of the names of its path, where that is not the parameter's."""

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


def consecutive(slices: tuple[tuple[str, Slice], ...], *others: Slice, axis: int = 0) -> tuple[Part, ...]:
    """Parts side by side: each named slice is that axis of its tensor, `others` are the axes around it."""
    parts, offset = [], 0
    for name, run in slices:
        parts.append(Part(name, (*others[:axis], run, *others[axis:]), axis, offset))
        offset += run.length
    return tuple(parts)


def vocabulary_share(vocab_size: int, rank: int, size: int, *, is_tied: bool) -> Slice:
    """The tokens of one rank: ranks hold equally many rows, of which the last may be padding, even all of them.

    Of a tied vocabulary they are blocks of `TIED_ROWS`.
    """
    num_rows = -(-vocab_size // size)
    if is_tied:
        num_rows = -(-num_rows // TIED_ROWS) * TIED_ROWS
    start = min(rank * num_rows, vocab_size)
    return Slice(vocab_size, start, start + num_rows)


def kv_head_share(num_kv_heads: int, rank: int, size: int) -> Slice:
    """The key-value heads of one rank: an equal run, or one head shared by `size / num_kv_heads` ranks."""
    if num_kv_heads % size and size % num_kv_heads:
        raise ModelError(
            "num_key_value_heads",
            f"{num_kv_heads} heads can neither be divided among {size} ranks nor repeated on equally many; "
            "choose a tensor_parallel_size that divides or is a multiple of it",
        )
    start = rank * num_kv_heads // size
    return Slice(num_kv_heads, start, start + max(1, num_kv_heads // size))
