"""Layouts: where in a stored tensor its parts lie, as a whole, side by side, or in any order of its indices."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import Part

Indices = range | list[int]
Region = tuple[Indices | int, ...]
"""A part in a stored tensor: for each axis its indices in the part's order, or the one index of an axis it has not."""


class Stored(NamedTuple):
    """A tensor as the checkpoint holds it, and the region of each of its parts."""

    shape: tuple[int, ...]
    regions: tuple[Region, ...]
    transposed: bool = False
    """Its last two axes are those of the parts the other way around."""
    either_way: bool = False
    """It may be held so, too: its shape tells."""

    @property
    def turned(self) -> "Stored":
        """The same with its last two axes the other way around."""
        regions = ((*region[:-2], *region[:-3:-1]) for region in self.regions)
        return Stored((*self.shape[:-2], *self.shape[:-3:-1]), tuple(regions), transposed=not self.transposed)

    def of_shape(self, shape: tuple[int, ...]) -> "Stored":
        """The way in which a tensor of this shape is held. CheckpointError where it tells nothing, or is another."""
        if self.either_way and self.shape[-1] == self.shape[-2]:
            raise CheckpointError(
                f"is {self.shape[-2]} by {self.shape[-1]}, so its shape does not tell outputs from inputs, which "
                "checkpoints hold in either order; use one that has a tensor for each expert"
            )
        turned = self.turned
        if self.either_way and shape == turned.shape:
            return turned
        if shape != self.shape:
            either = f", or {list(turned.shape)}" if self.either_way else ""
            raise CheckpointError(f"has shape {list(shape)}, the config describes {list(self.shape)}{either}")
        return self


Layout = Callable[[tuple[Part, ...]], Stored]
"""The parts that a tensor fills, whole -> how it holds them."""


class StackedLayout(Protocol):
    """The layout of a tensor of all experts, which have so many parts each."""

    def __call__(self, parts: tuple[Part, ...], each: int) -> Stored: ...


def side_by_side(parts: tuple[Part, ...]) -> Stored:
    """Each part behind the one before it, along the axis on which they are merged: a single one is the whole tensor."""
    first = parts[0]
    if not first.axes:
        return Stored((), ((),))
    ends = list(accumulate(part.full_shape[part.axis] for part in parts))
    before, after = first.full_shape[: first.axis], first.full_shape[first.axis + 1 :]
    regions = tuple(
        (*map(range, before), range(start, end), *map(range, after))
        for start, end in zip((0, *ends), ends, strict=False)
    )
    return Stored((*before, ends[-1], *after), regions)


def stacked(parts: tuple[Part, ...], each: int) -> Stored:
    """The parts of the first expert side by side, then those of the next: one behind another on an axis in front."""
    shape, regions, *_ = side_by_side(parts[:each])
    count = len(parts) // each
    return Stored((count, *shape), tuple((number, *region) for number in range(count) for region in regions))


def stacked_either_way(parts: tuple[Part, ...], each: int) -> Stored:
    """`stacked`, of matrices that have their outputs first or their inputs."""
    return stacked(parts, each)._replace(either_way=True)


def stacked_in_turn(parts: tuple[Part, ...], each: int) -> Stored:
    """`stacked`, but the rows of an expert's parts take turns: the first of each, then the second of each."""
    held, axis = stacked(parts, each), parts[0].axis + 1
    total = held.shape[axis]
    regions = (
        (*region[:axis], range(number % each, total, each), *region[axis + 1 :])
        for number, region in enumerate(held.regions)
    )
    return Stored(held.shape, tuple(regions))


def stacked_inputs_first(parts: tuple[Part, ...], each: int) -> Stored:
    """`stacked`, of matrices that have their inputs first."""
    return stacked(parts, each).turned


def stacked_in_turn_inputs_first(parts: tuple[Part, ...], each: int) -> Stored:
    """`stacked_in_turn`, of matrices that have their inputs first."""
    return stacked_in_turn(parts, each).turned


def of_inputs(parts: tuple[Part, ...]) -> Stored:
    """The whole tensor for each of the parts, which have their inputs in common."""
    shape = parts[0].full_shape
    return Stored(shape, (tuple(map(range, shape)),) * len(parts))


def one_row(parts: tuple[Part, ...]) -> Stored:
    """The only row of a tensor."""
    (part,) = parts
    return Stored((1, *part.full_shape), ((0, *map(range, part.full_shape)),))


@dataclass(frozen=True, slots=True)
class PairsApart:
    """A layout of queries, keys or values whose rotating pairs lie side by side in the checkpoint, (0, 1), (2, 3), …,
    while the model has the first elements of all pairs of a head, and then the second ones. Scores do not change."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotating: int
    """Elements of a head that rotate, the first ones."""

    def __call__(self, parts: tuple[Part, ...]) -> Stored:
        """Raises CheckpointError for rows that are not those of heads: what is stored for many together."""
        (part,) = parts
        stored = side_by_side(parts)
        if part.name == "v":
            return stored
        rows, heads = part.full_shape[part.axis], self.num_heads if part.name == "q" else self.num_kv_heads
        if rows != heads * self.head_dim:
            raise CheckpointError(
                f"{heads * self.head_dim} rows have to be put into another order, and something is stored "
                f"for {rows} groups of them; use a checkpoint that is quantized by rows, or not at all"
            )
        within = (*range(0, self.rotating, 2), *range(1, self.rotating, 2), *range(self.rotating, self.head_dim))
        order = [head * self.head_dim + row for head in range(heads) for row in within]
        region = stored.regions[0]
        return Stored(stored.shape, ((*region[: part.axis], order, *region[part.axis + 1 :]),))


@dataclass(frozen=True, slots=True)
class RowsOf:
    """A layout of a matrix of which the last part is these rows, and any before it is the whole."""

    num_rows: int
    """Those of the matrix."""
    rows: tuple[int, ...]

    def __call__(self, parts: tuple[Part, ...]) -> Stored:
        columns = range(parts[-1].full_shape[1])
        wholes = ((range(self.num_rows), columns),) * (len(parts) - 1)
        return Stored((self.num_rows, len(columns)), (*wholes, (list(self.rows), columns)))


def share_of(region: Region, part: Part, *, transposed: bool = False) -> Region:
    """The region of what this rank holds of the part."""
    axes = iter(reversed(part.axes) if transposed else part.axes)
    return tuple(
        indices if isinstance(indices, int) else indices[(axis := next(axes)).start : axis.stop] for indices in region
    )


def covering(region: Region) -> tuple[slice, ...]:
    """The smallest slices that hold the region."""
    return tuple(_slice(indices) for indices in region)


def _slice(indices: Indices | int) -> slice:
    if isinstance(indices, int):
        return slice(indices, indices + 1)
    if isinstance(indices, range):
        return slice(indices.start, indices.stop, indices.step)
    return slice(min(indices), max(indices) + 1)
