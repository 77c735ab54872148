"""Ahead-of-time builds of `quire.kernels.gpu.linear.norm`."""

from collections.abc import Iterator

import triton

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.norm import norm_rows_kernel, norm_wide_kernel
from quire.kernels.gpu.linear.tiles import WIDEST_NORM, norm_tiles


def builds(capability: int) -> Iterator[Build]:
    """The hidden sizes of the models people serve, and a row too wide for one pass; Gemma's, with gains in float32."""
    sizes = (1024, 2048, 2560, 4096, 5120, 8192, 16384) if capability == 90 else (4096, 8192)
    for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
        for size in sizes if dtype == "bf16" else (4096,):
            for add in (False, True):
                yield _build(size, dtype, add)
    for size in (2304, 3840, 5376) if capability == 90 else (3840,):
        for add in (False, True):
            yield _build(size, "bf16", add, gains="fp32")


def _build(size: int, dtype: str, add: bool, gains: str = "") -> Build:
    pointers = ("x", "residual", "weight", "normed", "total") if add else ("x", "weight", "normed")
    tiles, wide = norm_tiles(size), size > WIDEST_NORM
    return Build(
        name=f"{'add ' if add else ''}norm d{size} {dtype}{f' gains {gains}' if gains else ''}",
        kernel=norm_wide_kernel if wide else norm_rows_kernel,
        signature={
            **dict.fromkeys(pointers, f"*{dtype}"),
            "weight": f"*{gains or dtype}",
            **({} if wide else {"num_rows": "i32"}),
            "eps": "fp32",
        },
        constants={
            **({} if add else {"residual": None, "total": None}),
            "D": size,
            "BLOCK": min(WIDEST_NORM, triton.next_power_of_2(size)),
            **({} if wide else {"ROWS": tiles["rows"]}),
        },
        num_warps=tiles["num_warps"],
        divisible=pointers,
    )
