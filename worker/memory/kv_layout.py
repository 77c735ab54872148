"""The layout of the paged KV cache: which layers share a block table, and what a block of theirs takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quire.kernels.attention.int8_rows import row_width
from quire.worker.specs.spec import LayerKV


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers of one shape that share a block table; their windows may differ."""

    numbers: tuple[int, ...]
    """Numbers of its layers in the model; empty: blocks only account for prompts."""
    layers: tuple[LayerKV, ...]
    block_size: int
    """Tokens of a block."""
    dtype: torch.dtype

    def __post_init__(self) -> None:
        shapes = {(layer.num_kv_heads, layer.queries_per_head, layer.head_dim) for layer in self.layers}
        assert len(shapes) <= 1, f"layers of several shapes share a table: {shapes}"

    @property
    def head_shape(self) -> tuple[int, int]:
        """Heads and elements of a row of one, of the keys or the values of one token."""
        first = self.layers[0] if self.layers else None
        return (first.num_kv_heads, row_width(first.head_dim, self.dtype)) if first else (0, 0)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def is_scaled(self) -> bool:
        """8-bit floats, which are multiplied by the scales of their layer and head."""
        return self.dtype == torch.float8_e4m3fn

    @property
    def layer_bytes(self) -> int:
        """Bytes that the keys, or the values, of one block take in one layer."""
        return self.block_size * math.prod(self.head_shape) * self.dtype.itemsize

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Distinct windows of its layers."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the cache on one rank: groups whose blocks are pages of one pool.

    A page holds the layers of one group, whichever; so all groups have equally many layers, of equally many bytes.
    """

    groups: tuple[KVGroup, ...]
    """Their block sizes are powers of two."""

    def __post_init__(self) -> None:
        pages = {(len(group.layers), group.layer_bytes) for group in self.groups}
        assert len(pages) == 1, f"groups whose pages differ in (layers, bytes of a layer): {pages}"

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return tuple(group.block_size for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes on this rank, keys and values of all layers of its group."""
        return 2 * len(self.groups[0].layers) * self.groups[0].layer_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of all groups that so many tokens of one sequence need."""
        return sum(-(-num_tokens // size) for size in self.block_sizes)

    def tokens_in(self, num_blocks: int) -> int:
        """The most tokens of one sequence that so many blocks hold."""
        least, span = min(self.block_sizes), max(self.block_sizes)
        tokens = num_blocks // self.blocks_for(span) * span
        while self.blocks_for(tokens + least) <= num_blocks:
            tokens += least
        return tokens


def kv_layout(layers: Sequence[LayerKV], block_size: int, dtype: torch.dtype) -> KVLayout:
    """The layout for a model's layers: one group."""
    return KVLayout((KVGroup(tuple(range(len(layers))), tuple(layers), block_size, dtype),))
