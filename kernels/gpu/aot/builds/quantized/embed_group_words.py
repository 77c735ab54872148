"""Ahead-of-time builds of `quire.kernels.gpu.quantized.embed_group_words`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.quantized.embed_group_words import TOKENS, WARPS, embed_group_words_kernel
from quire.kernels.gpu.quantized.group_tiles import slices_of

HIDDEN = 4096


KINDS = (
    (8, 32, "fp16", None, None, ""),
    (4, 32, "fp16", None, None, ""),
    (4, 32, "fp16", "fp16", None, ""),
    (4, 32, "u8", None, None, "e2m1"),
    (4, 32, "i8", "i8", "fp16", ""),
    (8, 32, "i8", "i8", "fp16", ""),
    (8, 16, "i8", None, "fp16", ""),
    (4, 32, "fp16", None, None, "iq4_nl"),
    (4, 32, "i8", None, "fp16", "iq4_nl"),
)
"""Bits, group, scale, offset, unit and table of GGUF's Q8_0, Q4_0, Q4_1, MXFP4, Q4_K, Q5_K, Q6_K, IQ4_NL and IQ4_XS."""


def builds(capability: int) -> Iterator[Build]:
    """The types of GGUF files."""
    for bits, group, scale, offset, unit, table in KINDS:
        for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
            yield _build(bits, group, scale, offset, unit, table, dtype)


def _build(bits, group, scale, offset, unit, table, dtype):
    pointers = {"token_ids": "*i64", "words": "*i32", "scale": f"*{scale}", "out": f"*{dtype}"}
    pointers |= {name: f"*{kind}" for name, kind in (("offset", offset), ("unit", unit)) if kind}
    absent = {name: None for name in ("offset", "unit") if name not in pointers}
    numbers = dict.fromkeys(("num_tokens", "first", "count", "size_in", "size_out"), "i32")
    lie = slices_of(HIDDEN, HIDDEN // group, bits)
    return Build(
        f"embed {bits} bits {table or offset or 'symmetric'} {scale} by {group} d{HIDDEN} {dtype}",
        embed_group_words_kernel,
        {**pointers, **numbers},
        {**absent, **lie, "BITS": bits, "TABLE": table, "TOKENS": TOKENS},
        WARPS,
        divisible=(*pointers, "size_in", "size_out"),
    )
