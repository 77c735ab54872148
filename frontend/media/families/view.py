"""An item of an image: what a tower encodes at once."""

from typing import NamedTuple


class View(NamedTuple):
    """One item: the image is resized as a whole, and a box of that is the item."""

    size: tuple[int, int]
    """Height and width to which the image is resized."""
    box: tuple[int, int, int, int]
    """Left, upper, right and lower edge of the item within it."""

    @classmethod
    def whole(cls, height: int, width: int) -> "View":
        """The whole image, resized to this height and width."""
        return cls((height, width), (0, 0, width, height))

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the item."""
        left, upper, right, lower = self.box
        return lower - upper, right - left
