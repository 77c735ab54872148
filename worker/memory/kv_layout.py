"""The layout of the paged KV cache: which layers share a block table, and what a block of theirs takes."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quire.kernels.attention.int8_rows import row_width
from quire.kernels.attention.window import Chunk, Window
from quire.worker.specs.kv_split import LayerGroup, split
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

    @property
    def seen(self) -> tuple[Window | None, ...]:
        """Distinct windows of its layers, as attention takes them."""
        layers = dict.fromkeys((layer.window, layer.is_chunked) for layer in self.layers)
        return tuple(Chunk(window) if window and is_chunked else window for window, is_chunked in layers)

    @property
    def window(self) -> int | None:
        """The widest of them; None: some layer sees the whole context, or there is none."""
        windows = [window for window in self.windows if window is not None]
        return max(windows) if windows and len(windows) == len(self.windows) else None


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the cache on one rank: groups whose blocks are pages of one pool.

    A page holds the layers of one group, whichever, each in equally many bytes; some of it is empty where a group has
    fewer layers than others.
    """

    groups: tuple[KVGroup, ...]
    """Their block sizes are powers of two."""
    step_tokens: int = 1 << 30
    """Tokens of a sequence that one step may run."""
    words: str = ""
    """The groups in words, where there is something to say."""

    def __post_init__(self) -> None:
        pages = {group.layer_bytes for group in self.groups}
        assert len(pages) == 1, f"groups whose pages differ in bytes of a layer: {pages}"

    @property
    def layers_in_block(self) -> int:
        return max(len(group.layers) for group in self.groups)

    @property
    def windows(self) -> tuple[int, ...]:
        """`ModelFacts.windows`."""
        windows = tuple(group.window or 0 for group in self.groups)
        return windows if any(windows) else ()

    @property
    def most_blocks(self) -> tuple[int, ...]:
        """`ModelFacts.most_blocks`."""
        return tuple(group.most_blocks(self.step_tokens) for group in self._shares) if self.windows else ()

    @property
    def _shares(self) -> list[LayerGroup]:
        return [LayerGroup(group.numbers, group.block_size, group.window) for group in self.groups]

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return tuple(group.block_size for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes on this rank, keys and values of all layers of its group."""
        return 2 * self.layers_in_block * self.groups[0].layer_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of all groups that one sequence needs to get to so many tokens."""
        return sum(group.blocks_for(num_tokens, self.step_tokens) for group in self._shares)

    def tokens_in(self, num_blocks: int, most: int) -> int:
        """Tokens to which one sequence gets with so many blocks, `most` at most."""
        return bisect_right(range(1, most + 1), num_blocks, key=self.blocks_for)


def kv_layout(
    layers: Sequence[LayerKV], block_size: int, dtype: torch.dtype, context: int = 1, step_tokens: int = 1 << 30
) -> KVLayout:
    """The layout for a model's layers in which a sequence of `context` tokens takes least.

    For 1 that is one group, if the layers have one shape. `step_tokens`: tokens of a sequence that a step may run.
    Raises ModelError for layers that no pool holds.
    """
    token_bytes = [2 * layer.num_kv_heads * row_width(layer.head_dim, dtype) * dtype.itemsize for layer in layers]
    found = split(layers, token_bytes, block_size, context)
    groups = [
        KVGroup(group.numbers, tuple(layers[number] for number in group.numbers), group.block_size, dtype)
        for group in found.groups
    ]
    return KVLayout(tuple(groups), step_tokens, found.in_words())
