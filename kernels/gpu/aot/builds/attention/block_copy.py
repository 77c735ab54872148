"""Ahead-of-time builds of `quire.kernels.gpu.attention.block_copy`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.attention.block_copy import copy_blocks_kernel
from quire.kernels.gpu.attention.tiles import COPY_BYTES


def builds(capability: int) -> Iterator[Build]:
    """16 tokens of 8 key-value heads of 128 elements of two bytes; other blocks differ in a constant."""
    yield Build(
        name="copy 32 KiB",
        kernel=copy_blocks_kernel,
        signature={"keys": "*u8", "values": "*u8", "sources": "*i64", "destinations": "*i64"},
        constants={"BYTES": 16 * 8 * 128 * 2, "BLOCK": COPY_BYTES},
        num_warps=4,
        divisible=("keys", "values", "sources", "destinations"),
    )
