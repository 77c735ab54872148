"""Ahead-of-time builds of `quire.kernels.gpu.quantized.product_int8`."""

from collections.abc import Iterator

import torch

from quire.kernels.gpu.aot.build import Build, Feature
from quire.kernels.gpu.quantized.product_f8 import ADD_BLOCK, launch_options, tiles_for
from quire.kernels.gpu.quantized.product_int8 import SCALE_BLOCK, product_int8_kernel, scale_int8_sums_kernel


def builds(capability: int) -> Iterator[Build]:
    """The layers of 8B models, each once for the kernels it comes to: one that is split and one that is not."""
    for num_tokens, size_out in ((1, 4096), (32, 4096), (64, 4096), (1, 28672), (128, 4096)):
        yield _build(capability, num_tokens, size_out)
    yield _scale("add parts", 4, ADD_BLOCK)
    yield _scale("sums of many tokens", 1, SCALE_BLOCK)


def _build(capability: int, num_tokens: int, size_out: int) -> Build:
    tiles = tiles_for(num_tokens, 4096, size_out, torch.int8)
    is_split = tiles["parts"] > 1
    tensors = {
        "x": "*i8",
        "row_scale": "*fp32",
        "weight": "*i8",
        "scale": "*fp32",
        "out": "*i32" if is_split else "*bf16",
    }
    options = launch_options(tiles)
    num_warps, num_stages = options.pop("num_warps"), options.pop("num_stages")
    # Triton has the fifth generation's instruction for floats alone: 10.0 takes that of the chips before 9.0
    matrix: Feature = "wgmma" if capability == 90 else "mma"
    return Build(
        f"int8, {tiles['tokens']} tokens, {size_out} outputs",
        product_int8_kernel,
        {**tensors, **dict.fromkeys(("num_tokens", "size_in", "size_out", "steps"), "i32")},
        {"bias": None, "SPLIT": is_split, **options},
        num_warps,
        num_stages,
        (*tensors, "size_in", "size_out"),
        frozenset({matrix, "wide_copy", "s8"}),
    )


def _scale(name: str, parts: int, block: int) -> Build:
    return Build(
        name,
        scale_int8_sums_kernel,
        {
            "sums": "*i32",
            **dict.fromkeys(("row_scale", "scale"), "*fp32"),
            "out": "*bf16",
            **dict.fromkeys(("num_tokens", "size_out"), "i32"),
        },
        {"bias": None, "PARTS": parts, "BLOCK": block},
        num_warps=4,
        divisible=("sums", "scale", "out", "size_out"),
    )
