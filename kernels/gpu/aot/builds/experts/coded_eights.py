"""Ahead-of-time builds of experts of 8-bit floats and integers: `quire.kernels.gpu.experts.coded_f8` and its kin."""

from collections.abc import Iterator
from typing import Any

import torch

from quire.kernels.gpu.aot.build import Build, Feature, matrix_feature
from quire.kernels.gpu.chip import has_eight_bits
from quire.kernels.gpu.experts.coded_f8 import coded_f8_kernel, quantize_pairs_f8_kernel, tiles_of
from quire.kernels.gpu.experts.coded_f8_blocks import coded_f8_blocks_kernel
from quire.kernels.gpu.experts.coded_int8 import coded_int8_kernel
from quire.kernels.gpu.experts.tiles import are_few
from quire.kernels.gpu.quantized.product_f8 import launch_options
from quire.kernels.gpu.quantized.quantize_f8 import block_of, num_warps
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.linear_f8 import F8
from quire.kernels.linear.linear_f8_blocks import SIDE

_EXPERTS, _K, _HIDDEN, _INNER = 128, 8, 2048, 768
_COUNTS = (1, 16, 512, 8192)
"""Tokens: one, a batch, a batch as large as they come, a prompt."""
_NAMES = {F8: "fp8e4nv", torch.bfloat16: "bf16", torch.int8: "i8"}
_KERNELS: dict[str, Any] = {"f8": coded_f8_kernel, "f8 blocks": coded_f8_blocks_kernel, "int8": coded_int8_kernel}


def builds(capability: int) -> Iterator[Build]:
    """The 128 experts of Qwen3-30B-A3B, 8 a token; sizes are no constants."""
    for count in _COUNTS:
        yield _build("int8", capability, count, torch.int8, biased=count == 1)
    for form in ("f8", "f8 blocks"):
        for count in _COUNTS:
            if has_eight_bits(capability):
                yield _build(form, capability, count, F8, biased=count == 1)
            yield _build(form, capability, count, torch.bfloat16, biased=count == 16)
    if has_eight_bits(capability):
        yield _quantize(1, _HIDDEN, None)
        yield _quantize(512, _HIDDEN, None)
        yield _quantize(512, _INNER, "silu")


def _pairs(count: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Signature and constants of where tokens go: few pairs are not sorted."""
    if are_few(count * _K, _EXPERTS):
        return {"pairs": "*i32"}, {"starts": None}
    return {"pairs": "*i32", "starts": "*i32"}, {}


def _build(form: str, capability: int, count: int, x: torch.dtype, *, biased: bool) -> Build:
    tiles = tiles_of(count * _K, _EXPERTS, _HIDDEN, 2 * _INNER, x)
    options, (pairs, constants) = launch_options(tiles), _pairs(count)
    rounded, codes = x != torch.bfloat16, "*i8" if form == "int8" else "*fp8e4nv"
    if not rounded:
        constants["row_scale"] = None
    if not biased:
        constants["bias"] = None
    if form == "f8 blocks":
        constants["SIDE"] = SIDE
    tensors = {
        "x": f"*{_NAMES[x]}",
        **({"row_scale": "*fp32"} if rounded else {}),
        **pairs,
        "addresses": "*i64",
        "weight": codes if form == "int8" or has_eight_bits(capability) else "*u8",
        "scale": "*fp32",
        **({"bias": "*bf16"} if biased else {}),
        "out": "*bf16",
    }
    numbers = (*(("scaled_rows",) if form == "f8 blocks" else ()), "first", "per_row", "by_pair", "size_in", "size_out")
    num_warps_, num_stages = options.pop("num_warps"), options.pop("num_stages")
    return Build(
        f"{form} of experts, {_NAMES[x]} x, {count} tokens",
        _KERNELS[form],
        {**tensors, **dict.fromkeys(numbers, "i32")},
        {
            **constants,
            "EXPERTS": _EXPERTS,
            "EXPERTS_BLOCK": _EXPERTS,
            **options,
        },
        num_warps_,
        num_stages,
        (*tensors, "size_in", "size_out"),
        _features(capability, x),
    )


def _features(capability: int, x: torch.dtype) -> frozenset[Feature]:
    if x == torch.int8:
        # Triton has the fifth generation's instruction for floats alone: 10.0 takes that of the chips before 9.0
        return frozenset({"wgmma" if capability == 90 else "mma", "wide_copy", "s8"})
    return frozenset({matrix_feature(capability), "wide_copy", *({"f8"} if x == F8 else ())})


def _quantize(count: int, size: int, gate: Gate | None) -> Build:
    pairs, constants = _pairs(count)
    block = block_of(size)
    tensors = {
        "x": "*bf16",
        **pairs,
        "addresses": "*i64",
        "input_scale": "*fp32",
        "codes": "*fp8e4nv",
        "scales": "*fp32",
    }
    return Build(
        f"pairs rounded, {count} tokens{' behind a gate' if gate else ''}",
        quantize_pairs_f8_kernel,
        {**tensors, "first": "i32", "per_row": "i32"},
        {**constants, "EXPERTS": _EXPERTS, "EXPERTS_BLOCK": _EXPERTS, "D": size, "BLOCK": block, "KIND": gate},
        num_warps=num_warps(block),
        divisible=tuple(tensors),
    )
