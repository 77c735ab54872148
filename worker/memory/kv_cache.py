"""The paged KV cache: allocated once, in pages that any group of layers may hold."""

from typing import NamedTuple

import torch

from quire.worker.device.host_memory import zeros
from quire.worker.memory.kv_layout import KVLayout


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

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        first = layout.groups[0]
        shape = (num_blocks, first.block_size, *first.head_shape)
        # zeros, not empty: a block that is read before it was written must not show another process's memory
        self.pages = [(zeros(shape, first.dtype, device), zeros(shape, first.dtype, device)) for _ in first.layers]
        """Keys and values of all blocks, whichever group holds them, for each layer of a group."""
        parts: dict[int, LayerCache] = {}
        for number, group in enumerate(layout.groups):
            shape = (num_blocks, group.block_size, *group.head_shape)
            # without a calibration in the checkpoint the scales are 1: e4m3 holds values up to 448
            is_scaled = group.dtype == torch.float8_e4m3fn
            scale = torch.ones(group.head_shape[0], device=device) if is_scaled else None
            for layer, page in zip(group.numbers, self.pages, strict=True):
                keys, values = (cells.view(torch.uint8).view(group.dtype).view(shape) for cells in page)
                parts[layer] = LayerCache(keys, values, scale, scale, number)
        self.layers = [parts[layer] for layer in sorted(parts)]
        """Parts of the model's layers, in their order."""

    @property
    def num_bytes(self) -> int:
        return self.layout.block_bytes * self.num_blocks
