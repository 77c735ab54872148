"""The paged KV cache: one pair of tensors per layer, allocated once."""

from dataclasses import dataclass

import torch

from quire.worker.device import zeros


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the cache on one rank."""

    num_layers: int
    num_kv_heads: int
    """On this rank: at least one; heads are replicated when there are fewer than ranks."""
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes on this rank, keys and values of all layers."""
        return 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """`keys[layer]` and `values[layer]`: [num_blocks, block_size, num_kv_heads, head_dim]. Never grows."""

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        shape = (num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
        self.layout = layout
        self.num_blocks = num_blocks
        # zeros, not empty: a block that is read before it was written must not show another process's memory
        self.keys = [zeros(shape, layout.dtype, device) for _ in range(layout.num_layers)]
        self.values = [zeros(shape, layout.dtype, device) for _ in range(layout.num_layers)]

    @property
    def num_bytes(self) -> int:
        return self.layout.block_bytes * self.num_blocks
