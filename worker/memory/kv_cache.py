"""The paged KV cache: one pair of tensors per layer, allocated once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from quire.worker.device.host_memory import zeros


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Keys and values that one layer keeps of every token on one rank, and who reads them."""

    num_kv_heads: int
    """Heads on this rank: at least one; they are replicated when there are fewer than ranks."""
    queries_per_head: int
    """Query heads that read each of them: fewer where ranks share a head."""
    head_dim: int
    window: int | None
    """Tokens that a query sees, its own among them; None: the whole context."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the cache on one rank."""

    num_layers: int
    num_kv_heads: int
    """Heads on this rank: at least one; they are replicated when there are fewer than ranks."""
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes on this rank, keys and values of all layers."""
        return 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def kv_layout(layers: Sequence[LayerKV], block_size: int, dtype: torch.dtype) -> KVLayout:
    """The layout for these layers, which are of one shape; without layers blocks take no memory and only account for
    prompts."""
    shapes = {(layer.num_kv_heads, layer.head_dim) for layer in layers} or {(0, 0)}
    assert len(shapes) == 1, f"layers of several shapes: {shapes}"
    ((num_kv_heads, head_dim),) = shapes
    return KVLayout(len(layers), num_kv_heads, head_dim, block_size, dtype)


class LayerCache(NamedTuple):
    """One layer's part: keys and values [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scale: torch.Tensor | None
    """float32 [num_kv_heads], by which a cache of 8-bit floats is multiplied; None for any other"""
    value_scale: torch.Tensor | None


class KVCache:
    """Never grows."""

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        shape = (num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
        self.layout = layout
        self.num_blocks = num_blocks
        # without a calibration in the checkpoint the scales are 1: e4m3 holds values up to 448
        scale = torch.ones(layout.num_kv_heads, device=device) if layout.dtype == torch.float8_e4m3fn else None
        # zeros, not empty: a block that is read before it was written must not show another process's memory
        self.layers = [
            LayerCache(zeros(shape, layout.dtype, device), zeros(shape, layout.dtype, device), scale, scale)
            for _ in range(layout.num_layers)
        ]

    @property
    def num_bytes(self) -> int:
        return self.layout.block_bytes * self.num_blocks
