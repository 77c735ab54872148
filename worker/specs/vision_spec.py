"""The spec of a vision tower: what the engine asks of every kind, whatever its blocks are made of."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from quire.proto.messages.media import PLAIN, Grid
from quire.worker.fields import Activation, Config
from quire.worker.weights.parts import ModelError

CHANNELS: Final = 3
"""Red, green and blue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec(ABC):
    """A tower of blocks that are all alike, over the patches of an item, and what makes rows of a decoder of them.

    Each kind of tower has a spec of its own beside its family's reader, and `build_tower` builds it.
    """

    num_blocks: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    output_size: int
    """Hidden size of the decoder."""
    patch_size: int
    """Pixels of a patch's side."""
    temporal_patch_size: int = 1
    """Frames of a patch; an image is repeated."""
    merge_size: int
    """Patches of the side of a square for which one token stands."""
    activation: Activation
    norm_eps: float = 1e-6
    divided: bool = False
    """Ranks share the heads and the feed-forward of blocks; else each holds the tower, and items are dealt to them."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def merged_size(self) -> int:
        """Elements of the patches of one token."""
        return self.hidden_size * self.merge_size**2

    @property
    def patch_numbers(self) -> int:
        """Numbers of the pixels of one patch."""
        return CHANNELS * self.temporal_patch_size * self.patch_size**2

    @property
    def pixel_range(self) -> tuple[float, float] | None:
        """Numbers of black and white for a tower whose processor leaves pixels between 0 and 1; None: the processor's
        files say how it normalises them."""
        return None

    @property
    def takes_videos(self) -> bool:
        """A video's frames, as many at once as a patch spans, are items like images."""
        return self.temporal_patch_size > 1

    @property
    def whole_spans(self) -> bool:
        """The decoder's layers let the tokens of an item see each other, in both directions."""
        return False

    @property
    def tile_side(self) -> int | None:
        """Patches of the side of every item, where all are of one size."""
        return None

    @property
    def num_deepened(self) -> int:
        """Layers of the decoder, from its first on, behind each of which a row has something to add."""
        return 0

    @property
    def row_size(self) -> int:
        """Elements of a token's row: its embedding, and what is added behind each of the decoder's first layers."""
        return (1 + self.num_deepened) * self.output_size

    @property
    @abstractmethod
    def num_elements(self) -> int:
        """Elements of the tower's parameters."""

    @property
    @abstractmethod
    def shared_elements(self) -> int:
        """Those among them of which each rank has a share where the tower is divided."""

    def num_rows(self, grid: Grid) -> int:
        """Rows of an item. Raises `ValueError` for a grid that the tower does not take."""
        if len(grid) != PLAIN:
            raise ValueError(f"a grid is of frames, rows and columns, got {grid}")
        frames, rows, columns = grid
        if frames not in (1, self.temporal_patch_size):
            taken = " or ".join(map(str, sorted({1, self.temporal_patch_size})))
            raise ValueError(f"the frames of an item must be {taken}, got {grid}")
        merge, side = self.merge_size, self.tile_side
        if min(rows, columns) < merge or rows % merge or columns % merge:
            raise ValueError(f"a grid is of whole squares of {merge} patches, got {grid}")
        if side is not None and (rows, columns) != (side, side):
            raise ValueError(f"every item has {side} rows and columns of patches, got {grid}")
        return rows * columns // merge**2

    def rank_elements(self, group_size: int) -> int:
        """Elements on each of so many ranks."""
        apart = self.shared_elements // group_size if self.divided else self.shared_elements
        return self.num_elements - self.shared_elements + apart

    def indivisible(self, group_size: int) -> list[ModelError]:
        """Errors for all of a divided tower that so many ranks cannot share."""
        counts = {"heads": self.num_heads, "elements of a feed-forward": self.intermediate_size}
        return [
            ModelError(
                "mm_encoder_tp_mode",
                f"weights: the tower's {count} {what} cannot be divided among {group_size} ranks; choose data",
            )
            for what, count in counts.items()
            if self.divided and count % group_size
        ]

    @property
    def processor_sizes(self) -> dict[str, int]:
        """Sizes that the files of the image processor must not state otherwise, by the names they have there."""
        return {"patch_size": self.patch_size}

    def patches_of(self, num_rows: int) -> int:
        """Most patches of an item with so many rows."""
        return num_rows * self.merge_size**2

    @abstractmethod
    def largest_item(self, processor: Config) -> int:
        """Tokens of the largest item that an image processor with these settings makes; 0 where they name no bound.

        Raises ModelError for settings that are none.
        """


def shared_linear_elements(hidden: int, inner: int, *, columns: int, bias: bool = True) -> int:
    """Elements that ranks share of `columns` products from hidden to inner, and of one back, whose bias they do not."""
    return columns * linear_elements(inner, hidden, bias=bias) + hidden * inner


def linear_elements(outputs: int, inputs: int, *, bias: bool = True) -> int:
    """Elements of a matrix and its bias."""
    return outputs * (inputs + bias)
