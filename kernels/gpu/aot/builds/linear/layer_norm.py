"""Ahead-of-time builds of `quire.kernels.gpu.linear.layer_norm`."""

from collections.abc import Iterator

import triton

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.layer_norm import layer_norm_kernel
from quire.kernels.gpu.linear.tiles import layer_norm_warps


def builds(capability: int) -> Iterator[Build]:
    """The widths of MiniLM, BERT base and bge-m3."""
    for size in (384, 768, 1024):
        for add in (False, True):
            pointers = ("x", "residual", "weight", "bias", "out") if add else ("x", "weight", "bias", "out")
            block = triton.next_power_of_2(size)
            yield Build(
                name=f"{'add ' if add else ''}layer norm d{size} bf16",
                kernel=layer_norm_kernel,
                signature={**dict.fromkeys(pointers, "*bf16"), "eps": "fp32"},
                constants={**({} if add else {"residual": None}), "D": size, "BLOCK": block},
                num_warps=layer_norm_warps(block),
                divisible=pointers,
            )
