"""Tokens that are squares of patches, with nothing between their rows."""

from typing import ClassVar

import msgspec

from quire.proto.messages.media import Grid


class Squares(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of families whose towers make one row of each square."""

    row_ends: ClassVar[tuple[int, int] | None] = None

    patch: int
    """Pixels of the side of a patch as the tower knows it."""
    merge: int
    """Patches of the side of the square that is one token."""

    def grid(self, height: int, width: int) -> Grid:
        """Frames, rows and columns of patches of an item of so many pixels."""
        return 1, height // self.patch, width // self.patch

    def num_tokens(self, grid: Grid) -> int:
        """Tokens of an item: frames of one item are one in time."""
        _, rows, columns = grid
        return rows * columns // self.merge**2

    def num_breaks(self, grid: Grid) -> int:
        return 0
