"""An image's items, and the views of it that stand in their files."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.proto.messages.media import Grid


class View(NamedTuple):
    """A part of an image: the image is resized as a whole, once or several times, and a box of that is the view."""

    size: tuple[int, int]
    """Height and width to which the image is resized."""
    box: tuple[int, int, int, int]
    """Left, upper, right and lower edge of the view within it; what is outside of it is black."""
    before: tuple[tuple[int, int], ...] = ()
    """Heights and widths to which the image is resized before that, one after another."""

    @classmethod
    def whole(cls, height: int, width: int) -> "View":
        """The whole image, resized to this height and width."""
        return cls((height, width), (0, 0, width, height))

    @property
    def is_whole(self) -> bool:
        """It shows all of the image."""
        height, width = self.size
        return self.box == (0, 0, width, height)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the view."""
        left, upper, right, lower = self.box
        return lower - upper, right - left


class Item(NamedTuple):
    """The unit that a tower encodes at once."""

    grid: Grid
    views: tuple[View, ...]
    """Its pixels: one below the other, all of one width."""


def each_alone(views: Sequence[View], grid: Callable[[int, int], Grid]) -> tuple[Item, ...]:
    """Items of one view each; `grid`: from its height and width."""
    return tuple(Item(grid(*view.shape), (view,)) for view in views)
