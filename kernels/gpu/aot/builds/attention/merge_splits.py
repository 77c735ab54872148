"""Ahead-of-time builds of `quire.kernels.gpu.attention.merge_splits`."""

from collections.abc import Iterator

import triton

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.attention.merge_splits import merge_splits_kernel
from quire.kernels.gpu.attention.tiles import MERGED_PROGRAMS


def builds(capability: int) -> Iterator[Build]:
    """The usual head, and on Hopper the others; without sinks, and with them."""
    for head_dim, with_sinks in ((128, False), (64, True), (256, False), (512, False))[: 4 if capability == 90 else 1]:
        pointers = {
            "partial": "*fp32",
            "partial_lse": "*fp32",
            "out": "*bf16",
            "query_starts": "*i32",
            "tiles": "*i32",
        }
        if with_sinks:
            pointers["sinks"] = "*fp32"
        yield Build(
            name=f"merge d{head_dim}{' sinks' if with_sinks else ''}",
            kernel=merge_splits_kernel,
            signature={**pointers, "num_rows": "i32", "programs": "i32"},
            constants={
                **({} if with_sinks else {"sinks": None}),
                "HEADS": 32,
                "DIM": head_dim,
                "COLUMNS": triton.next_power_of_2(head_dim),
                "CHUNK": MERGED_PROGRAMS,
            },
            num_warps=4,
            divisible=tuple(pointers),
        )
