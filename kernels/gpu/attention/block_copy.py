"""Copies blocks of one layer's cache: a program for each stretch of each copy, keys and values in one launch.

Floor: each block of keys and of values read and written, 4 * block_size * K * D * (bytes of an element) for each
copy; no arithmetic. The cache is copied as bytes, so one kernel serves every type.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.build import Build

TILE = 4096
"""Bytes of keys, and of values, a program moves."""


@triton.jit
def _copy_kernel(keys, values, sources, destinations, BYTES: tl.constexpr, BLOCK: tl.constexpr):
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
        _copy_kernel[(num_copies, triton.cdiv(num_bytes, TILE))](
            keys.view(torch.uint8), values.view(torch.uint8), sources, destinations,
            BYTES=num_bytes, BLOCK=TILE, num_warps=4,
        )  # fmt: skip


def builds(capability: int) -> Iterator[Build]:
    """16 tokens of 8 key-value heads of 128 elements of two bytes; other blocks differ in a constant."""
    yield Build(
        name="copy 32 KiB",
        kernel=_copy_kernel,
        signature={"keys": "*u8", "values": "*u8", "sources": "*i64", "destinations": "*i64"},
        constants={"BYTES": 16 * 8 * 128 * 2, "BLOCK": TILE},
        num_warps=4,
        divisible=("keys", "values", "sources", "destinations"),
    )
