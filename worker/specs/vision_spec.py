"""The vision tower's spec: the vision_config of a config.json read into one frozen value."""

from dataclasses import dataclass
from typing import Final

from quire.worker.fields import Gate

CHANNELS: Final = 3
"""Red, green and blue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """A tower of blocks that are all alike, over the patches of an image, and what makes rows of a decoder of them."""

    num_blocks: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    output_size: int
    """Hidden size of the decoder."""
    patch_size: int
    """Pixels of a patch's side."""
    temporal_patch_size: int
    """Frames of a patch; an image is repeated."""
    merge_size: int
    """Patches of the side of a square for which one token stands."""
    grid_side: int
    """Learned positions of a side of their square, interpolated for items of any other grid."""
    deepstack: tuple[int, ...]
    """Blocks, in order, behind each of which rows are made for the decoder's next layer, from its first on."""
    activation: Gate
    rope_theta: float
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def merged_size(self) -> int:
        """Elements of the patches of one token."""
        return self.hidden_size * self.merge_size**2

    @property
    def row_size(self) -> int:
        """Elements of a token's row: its embedding, and what is added behind each of the decoder's first layers."""
        return (1 + len(self.deepstack)) * self.output_size
