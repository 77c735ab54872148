"""Ahead-of-time builds of `quire.kernels.gpu.linear.linear_group_words`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build, matrix_feature
from quire.kernels.gpu.linear.group_tiles import BLOCK_O, PIECE_OUTPUTS, PIECE_WARPS, group_tiles, run_of
from quire.kernels.gpu.linear.linear_group_words import dequantize_words_kernel, linear_group_words_kernel

SIZES = (4096, 4096)
GROUP = 128


def builds(capability: int) -> Iterator[Build]:
    """The usual checkpoints on every chip: AWQ and GPTQ of 4 bits, 8 bits by 32; on Hopper what else there may be."""
    yield _build(capability, 4, 16, offset="u8")
    yield _build(capability, 4, 32, offset="u8")
    yield _build(capability, 8, 32, group=32)
    yield _dequantize(4, "bf16", "u8")
    if capability != 90:
        return
    yield _build(capability, 4, 16, group=32, offset="fp16")
    yield _build(capability, 4, 32, group=SIZES[0], dtype="fp16")
    yield _build(capability, 8, 16, group=64, scale="bf16", offset="bf16")
    yield _build(capability, 4, 32, offset="u8", bias=True, is_split=False)
    yield _dequantize(8, "fp32", None)


def _build(capability, bits, tokens, group=GROUP, dtype="bf16", scale="fp16", offset=None, bias=False, is_split=True):
    tiles = group_tiles(tokens, *SIZES, bits)
    pointers, numbers, absent = _arguments(
        dtype, scale, offset, ("num_tokens", "size_in", "size_out", "group_size", "steps")
    )
    pointers |= {"x": f"*{dtype}", "out": "*fp32" if is_split else f"*{dtype}"}
    if bias:
        pointers |= {"bias": f"*{dtype}"}
    else:
        absent |= {"bias": None}
    return Build(
        f"{bits} bits by {group} {dtype} {offset or 'symmetric'} {tokens} tokens{'' if is_split else ' whole'}",
        linear_group_words_kernel,
        {**pointers, **numbers},
        {
            **absent,
            "BITS": bits,
            "RUN": run_of(SIZES[0], SIZES[0] // group, bits),
            "SPLIT": is_split,
            "ROWS": tiles["rows"] if is_split else 0,
            "TOKENS": tiles["tokens"],
            "BLOCK_O": BLOCK_O,
        },
        tiles["num_warps"],
        tiles["num_stages"],
        (*pointers, "size_in", "size_out", "group_size"),
        frozenset({matrix_feature(capability), "wide_copy"}),
    )


def _dequantize(bits, dtype, offset):
    pointers, numbers, absent = _arguments(dtype, "fp16", offset, ("begin", "end", "size_in", "size_out", "group_size"))
    return Build(
        f"dequantize {bits} bits {dtype} {offset or 'symmetric'}",
        dequantize_words_kernel,
        {**pointers, "out": f"*{dtype}", **numbers},
        {**absent, "BITS": bits, "RUN": run_of(SIZES[0], SIZES[0] // GROUP, bits), "OUTPUTS": PIECE_OUTPUTS},
        PIECE_WARPS,
        divisible=(*pointers, "out", "size_in", "size_out", "group_size"),
    )


def _arguments(dtype, scale, offset, numbers):
    """Pointers and whole numbers with their types, and what is absent."""
    pointers = {"words": "*i32", "scale": f"*{scale}", **({"offset": f"*{offset}"} if offset else {})}
    return pointers, dict.fromkeys(numbers, "i32"), {} if offset else {"offset": None}
