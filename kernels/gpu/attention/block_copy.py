"""Copies blocks of one layer's cache: a program for each stretch of each copy, keys and values in one launch.

Floor: each block of keys and of values read and written, 4 * block_size * K * D * (bytes of an element) for each
copy; no arithmetic. The cache is copied as bytes, so one kernel serves every type.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.attention.tiles import COPY_BYTES


@triton.jit
def copy_blocks_kernel(keys, values, sources, destinations, BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """BYTES: of a block of keys, and as many of values. No destination is a source, so no order is needed."""
    source = tl.load(sources + tl.program_id(0)) * BYTES
    destination = tl.load(destinations + tl.program_id(0)) * BYTES
    byte = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + source + byte, byte < BYTES)
    value = tl.load(values + source + byte, byte < BYTES)
    tl.store(keys + destination + byte, key, byte < BYTES)
    tl.store(values + destination + byte, value, byte < BYTES)


def copy_blocks(keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    """See `quire.kernels.attention.block_copy`."""
    num_copies, num_bytes = sources.shape[0], keys[0].nbytes
    if num_copies and num_bytes:
        copy_blocks_kernel[(num_copies, triton.cdiv(num_bytes, COPY_BYTES))](
            keys.view(torch.uint8),
            values.view(torch.uint8),
            sources,
            destinations,
            BYTES=num_bytes,
            BLOCK=COPY_BYTES,
            num_warps=4,
        )
