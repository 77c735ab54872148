"""Ahead-of-time builds of `quire.kernels.gpu.quantized.product_f8_blocks`."""

from collections.abc import Iterator

import torch

from quire.kernels.gpu.aot.build import Build, Feature, matrix_feature
from quire.kernels.gpu.chip import has_eight_bits
from quire.kernels.gpu.quantized.product_f8 import ADD_BLOCK, add_f8_parts_kernel, launch_options, tiles_for
from quire.kernels.gpu.quantized.product_f8_blocks import product_f8_blocks_kernel
from quire.kernels.linear.linear_f8 import F8
from quire.kernels.linear.linear_f8_blocks import SIDE

_NAMES = {F8: "fp8e4nv", torch.bfloat16: "bf16"}


def builds(capability: int) -> Iterator[Build]:
    """The layers of 8B models, each once for the kernels it comes to: one that is split and one that is not."""
    if has_eight_bits(capability):
        for num_tokens in (1, 32, 64):
            yield _build(capability, num_tokens, 4096, F8)
        yield _build(capability, 1, 24576, F8)
        yield _build(capability, 128, 4096, F8)
    for num_tokens in (1, 64, 128):
        yield _build(capability, num_tokens, 4096, torch.bfloat16)
    yield Build(
        "add parts of blocks",
        add_f8_parts_kernel,
        {"sums": "*fp32", "out": "*bf16", **dict.fromkeys(("num_tokens", "size_out"), "i32")},
        {"row_scale": None, "scale": None, "bias": None, "PARTS": 4, "BLOCK": ADD_BLOCK},
        num_warps=4,
        divisible=("sums", "out", "size_out"),
    )


def _build(capability: int, num_tokens: int, size_out: int, x: torch.dtype) -> Build:
    tiles = tiles_for(num_tokens, 4096, size_out, x)
    is_split, rounded = tiles["parts"] > 1, x == F8
    tensors = {
        "x": f"*{_NAMES[x]}",
        **({"row_scale": "*fp32"} if rounded else {}),
        "weight": "*fp8e4nv" if has_eight_bits(capability) else "*u8",
        "scale": "*fp32",
        "out": "*fp32" if is_split else "*bf16",
    }
    options = launch_options(tiles)
    num_warps, num_stages = options.pop("num_warps"), options.pop("num_stages")
    features: set[Feature] = {matrix_feature(capability), "wide_copy"}
    return Build(
        f"{'fp8' if rounded else _NAMES[x]} x, {tiles['tokens']} tokens, {size_out} outputs",
        product_f8_blocks_kernel,
        {**tensors, **dict.fromkeys(("num_tokens", "rows", "size_in", "size_out", "steps"), "i32")},
        {**({} if rounded else {"row_scale": None}), "bias": None, "SPLIT": is_split, "SIDE": SIDE, **options},
        num_warps,
        num_stages,
        (*tensors, "size_in", "size_out"),
        frozenset(features | ({"f8"} if rounded else set())),
    )
