"""Ahead-of-time builds of `quire.kernels.gpu.quantized.linear_group_words`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build, matrix_feature
from quire.kernels.gpu.quantized.group_tiles import BLOCK_O, PIECE_OUTPUTS, PIECE_WARPS, group_tiles, slices_of
from quire.kernels.gpu.quantized.linear_group_words import dequantize_words_kernel, linear_group_words_kernel

SIZES = (4096, 4096)
GROUP = 128
DIVISIBLE = {"size_in", "size_out", "group_size"}
"""Numbers that are multiples of 16."""
GGUF = (
    {"bits": 4, "group": 32, "scale": "i8", "offset": "i8", "unit": "fp16"},
    {"bits": 8, "group": 32, "scale": "i8", "offset": "i8", "unit": "fp16"},
    {"bits": 8, "group": 16, "scale": "i8", "offset": None, "unit": "fp16"},
    {"bits": 4, "group": 32, "scale": "fp16", "offset": None, "table": "iq4_nl"},
    {"bits": 4, "group": 32, "scale": "i8", "offset": None, "unit": "fp16", "table": "iq4_nl"},
)
"""Q4_K, Q5_K, Q6_K, IQ4_NL and IQ4_XS."""


def builds(capability: int) -> Iterator[Build]:
    """The usual checkpoints on every chip: AWQ and GPTQ of 4 bits, 8 bits by 32, NVFP4 and MXFP4, GGUF's Q4_K, Q5_K,
    Q6_K, IQ4_NL and IQ4_XS; on Hopper what else there may be."""
    yield _build(capability, 4, 16, offset="u8")
    yield _build(capability, 4, 32, offset="u8")
    yield _build(capability, 8, 32, group=32)
    yield _dequantize(4, "bf16", "u8")
    for tokens in (16, 32):
        yield _build(capability, 4, tokens, group=16, scale="u8", unit="fp32", table="e2m1")
        yield _build(capability, 4, tokens, group=32, scale="u8", table="e2m1")
        for kind in GGUF:
            yield _build(capability, tokens=tokens, **kind)
    yield _dequantize(4, "bf16", None, 16, "u8", "fp32", "e2m1")
    yield _dequantize(4, "bf16", None, 32, "u8", table="e2m1")
    for kind in GGUF:
        yield _dequantize(dtype="bf16", **kind)
    if capability != 90:
        return
    floats = {"scale": "u8", "unit": "fp32", "table": "e2m1"}
    yield _build(capability, 4, 16, group=16, dtype="fp16", **floats, bias=True, is_split=False)
    for tokens in (16, 32):
        yield _build(capability, 4, tokens, group=32, dtype="fp16", **floats)
    yield _build(capability, dtype="fp16", tokens=16, **GGUF[2], bias=True, is_split=False)
    yield _build(capability, 4, 16, group=32, offset="fp16")
    yield _build(capability, 4, 32, group=SIZES[0], dtype="fp16")
    yield _build(capability, 8, 16, group=64, scale="bf16", offset="bf16")
    yield _build(capability, 4, 32, offset="u8", bias=True, is_split=False)
    yield _dequantize(8, "fp32", None)


def _build(
    capability,
    bits,
    tokens,
    group=GROUP,
    dtype="bf16",
    scale="fp16",
    offset=None,
    unit=None,
    table="",
    bias=False,
    is_split=True,
):
    tiles = group_tiles(tokens, *SIZES, bits)
    pointers, numbers, fixed = _arguments(
        bits, group, scale, offset, unit, table, ("num_tokens", "size_in", "size_out", "steps")
    )
    pointers |= {"x": f"*{dtype}", "out": "*fp32" if is_split else f"*{dtype}"}
    if bias:
        pointers |= {"bias": f"*{dtype}"}
    else:
        fixed |= {"bias": None}
    return Build(
        f"{_kind(bits, group, scale, offset, unit, table)} {dtype} {tokens} tokens{'' if is_split else ' whole'}",
        linear_group_words_kernel,
        {**pointers, **numbers},
        {
            **fixed,
            "SPLIT": is_split,
            "ROWS": tiles["rows"] if is_split else 0,
            "TOKENS": tiles["tokens"],
            "BLOCK_O": BLOCK_O,
        },
        tiles["num_warps"],
        tiles["num_stages"],
        (*pointers, *(name for name in numbers if name in DIVISIBLE)),
        frozenset({matrix_feature(capability), "wide_copy"}),
    )


def _dequantize(bits, dtype, offset, group=GROUP, scale="fp16", unit=None, table=""):
    names = ("begin", "end", "size_in", "size_out")
    pointers, numbers, fixed = _arguments(bits, group, scale, offset, unit, table, names)
    return Build(
        f"dequantize {_kind(bits, group, scale, offset, unit, table)} {dtype}",
        dequantize_words_kernel,
        {**pointers, "out": f"*{dtype}", **numbers},
        {**fixed, "OUTPUTS": PIECE_OUTPUTS},
        PIECE_WARPS,
        divisible=(*pointers, "out", *(name for name in numbers if name in DIVISIBLE)),
    )


def _kind(bits, group, scale, offset, unit, table):
    """Codes and groups in a word or two."""
    if table == "e2m1":
        return f"{bits}-bit floats by {group} {'e4m3' if unit else 'e8m0'}"
    where = " of superblocks" if scale == "i8" else ""
    offset = "minima" if offset == "i8" else offset
    return f"{bits} bits by {group}{where} {table or offset or 'symmetric'}"


def _arguments(bits, group, scale, offset, unit, table, numbers):
    """Pointers and whole numbers with their types, and what is fixed: what is absent, and how groups and slices lie."""
    given = {"scale": scale, "offset": offset, "unit": unit}
    pointers = {"words": "*i32", **{name: f"*{kind}" for name, kind in given.items() if kind}}
    slices = slices_of(SIZES[0], SIZES[0] // group, bits)
    if slices["group_size"] is not None:
        slices.pop("group_size")
        numbers = (*numbers, "group_size")
    absent = {name: None for name, kind in given.items() if not kind}
    return pointers, dict.fromkeys(numbers, "i32"), {"BITS": bits, "TABLE": table, **slices, **absent}
