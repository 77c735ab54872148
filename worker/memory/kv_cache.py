"""The paged KV cache: allocated once, in pages that any group of layers may hold."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from quire.worker.device.host_memory import zeros
from quire.worker.memory.kv_layout import KVLayout
from quire.worker.memory.kv_scales import KVScales, ones


class LayerCache(NamedTuple):
    """One layer's part: keys and values [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scale: torch.Tensor | None
    """float32 [num_kv_heads], by which a cache of 8-bit floats is multiplied; None for any other"""
    value_scale: torch.Tensor | None
    group: int
    """Number of the layer's KV group, by whose block tables it is read."""


class KVCache:
    """Never grows. The first layers of all groups lie in the same memory, then the second ones, and so on."""

    def __init__(
        self, layout: KVLayout, num_blocks: int, device: torch.device, scales: Sequence[KVScales] | None = None
    ) -> None:
        """`scales`: of each layer of the model, for groups of 8-bit floats; left out: 1, which is enough to measure."""
        self.layout = layout
        self.num_blocks = num_blocks
        first = layout.groups[0]
        shape = (num_blocks, first.block_size, *first.head_shape)
        # zeros, not empty: a block that is read before it was written must not show another process's memory
        self.pages = [
            (zeros(shape, first.dtype, device), zeros(shape, first.dtype, device))
            for _ in range(layout.layers_in_block)
        ]
        """Keys and values of all blocks, whichever group holds them, for each layer of a block."""
        parts: dict[int, LayerCache] = {}
        for number, group in enumerate(layout.groups):
            shape = (num_blocks, group.block_size, *group.head_shape)
            for layer, page in zip(group.numbers, self.pages, strict=False):
                keys, values = (cells.view(torch.uint8).view(group.dtype).view(shape) for cells in page)
                own: KVScales | tuple[None, None] = (None, None)
                if group.is_scaled:
                    own = ones(group.head_shape[0]) if scales is None else scales[layer]
                key_scale, value_scale = (None if scale is None else scale.to(device) for scale in own)
                parts[layer] = LayerCache(keys, values, key_scale, value_scale, number)
        self.layers = [parts[layer] for layer in sorted(parts)]
        """Parts of the model's layers, in their order."""

    @property
    def num_bytes(self) -> int:
        return self.layout.block_bytes * self.num_blocks
