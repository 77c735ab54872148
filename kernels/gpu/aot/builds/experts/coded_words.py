"""Ahead-of-time builds of experts in words of codes: `quire.kernels.gpu.experts.coded_words` and `gate`."""

from collections.abc import Iterator

import torch

from quire.kernels.gpu.aot.build import Build, matrix_feature
from quire.kernels.gpu.experts.coded_words import coded_words_kernel
from quire.kernels.gpu.experts.gate import BLOCK, gate_experts_kernel
from quire.kernels.gpu.experts.tiles import are_few, word_tiles
from quire.kernels.gpu.quantized.group_tiles import slices_of
from quire.kernels.linear.linear_groups import Bits

_EXPERTS, _K, _HIDDEN = 128, 8, 2048
"""Sizes of Qwen3-30B-A3B."""


def builds(capability: int) -> Iterator[Build]:
    """One token, decodes and a prompt of AWQ and GPTQ of 4 bits; NVFP4, MXFP4 with the biases of gpt-oss, and GGUF's
    Q4_K, Q6_K and IQ4_XS; on Hopper what else there may be."""
    for num_tokens in (1, 128, 512, 8192):
        yield _build(capability, num_tokens, offset="u8")
    for num_tokens in (1, 128):
        yield _build(capability, num_tokens, group=16, scale="u8", unit="fp32", table="e2m1")
        yield _build(capability, num_tokens, group=32, scale="u8", table="e2m1", biased=True)
        yield _build(capability, num_tokens, group=32, scale="i8", offset="i8", unit="fp16")
        yield _build(capability, num_tokens, bits=8, group=16, scale="i8", unit="fp16")
        yield _build(capability, num_tokens, group=32, scale="i8", unit="fp16", table="iq4_nl")
    for kind in ("silu", "swigluoai"):
        yield Build(
            f"gate {kind}",
            gate_experts_kernel,
            {"x": "*bf16", "out": "*bf16", "inner": "i32"},
            {"KIND": kind, "BLOCK": BLOCK},
            num_warps=4,
            divisible=("x", "out", "inner"),
        )
    if capability != 90:
        return
    yield _build(capability, 8192, group=16, scale="u8", unit="fp32", table="e2m1")
    yield _build(capability, 8192, group=32, scale="i8", offset="i8", unit="fp16")
    yield _build(capability, 128, group=32, dtype="fp16", offset="fp16")
    yield _build(capability, 128, bits=8, group=32)
    yield _build(capability, 128, dtype="fp32", offset="u8")


def _build(
    capability: int,
    num_tokens: int,
    *,
    bits: Bits = 4,
    group: int = 128,
    dtype: str = "bf16",
    scale: str = "fp16",
    offset: str | None = None,
    unit: str | None = None,
    table: str = "",
    biased: bool = False,
) -> Build:
    num_pairs, inputs = num_tokens * _K, _HIDDEN
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    tiles = word_tiles(num_pairs, _EXPERTS, kind, superblocks=scale == "i8")
    given = {
        "starts": None if are_few(num_pairs, _EXPERTS) else "i32",
        "scale": scale,
        "offset": offset,
        "unit": unit,
        "bias": dtype if biased else None,
    }
    pointers = {"x": f"*{dtype}", "pairs": "*i32", "addresses": "*i64", "words": "*i32", "out": f"*{dtype}"}
    pointers |= {name: f"*{kind}" for name, kind in given.items() if kind}
    slices = slices_of(inputs, inputs // group, bits)
    numbers = ["first", "per_row", "by_pair", "size_in", "size_out", "tiles"]
    if slices["group_size"] is not None:
        slices.pop("group_size")
        numbers.append("group_size")
    what = f"{bits} bits by {group} {table} {scale} {offset or ''}".replace("  ", " ").strip()
    return Build(
        f"{what} {dtype} {'few' if given['starts'] is None else tiles['rows']}",
        coded_words_kernel,
        {**pointers, **dict.fromkeys(numbers, "i32")},
        {
            **{name: None for name, kind in given.items() if not kind},
            **slices,
            "EXPERTS": _EXPERTS,
            "EXPERTS_BLOCK": _EXPERTS,
            "BITS": bits,
            "TABLE": table,
            "ROWS": tiles["rows"],
            "BLOCK_O": tiles["block_o"],
        },
        tiles["num_warps"],
        tiles["num_stages"],
        (*pointers, *(name for name in numbers if name in ("size_in", "size_out", "group_size"))),
        frozenset() if dtype == "fp32" else frozenset({matrix_feature(capability), "wide_copy"}),
    )
