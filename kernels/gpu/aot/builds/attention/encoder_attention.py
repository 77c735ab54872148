"""Ahead-of-time builds of `quire.kernels.gpu.attention.encoder_attention`."""

import itertools
from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build, Feature, matrix_feature
from quire.kernels.gpu.attention.encoder_attention import encoder_attention_kernel, encoder_constants
from quire.kernels.gpu.attention.tiles import LONG_ROW, encoder_tiles

IMAGE = 3772
"""Patches of one image: a long row."""


def builds(capability: int) -> Iterator[Build]:
    """BERT base (twelve heads of 64), MiniLM (twelve of 32), bge-m3 (sixteen of 64), every wider head; and long rows of
    towers of vision, sixteen heads of 72 (Qwen3-VL) and 80 (Qwen2.5-VL)."""
    for head_dim in (72, 80):
        yield _build(capability, 16, head_dim, "bf16", IMAGE)
    if capability != 90:
        for head_dim, dtype in ((64, "bf16"), (72, "bf16"), (128, "bf16"), (256, "bf16"), (64, "fp32"), (256, "fp32")):
            yield _build(capability, 12, head_dim, dtype)
        return
    yield _build(capability, 12, 32, "bf16")
    yield _build(capability, 16, 64, "bf16")
    for head_dim, dtype in itertools.product((64, 72, 80, 96, 128, 256), ("bf16", "fp16", "fp32")):
        yield _build(capability, 12, head_dim, dtype)
    for head_dim, dtype in ((32, "bf16"), (64, "bf16"), (72, "fp16"), (96, "bf16"), (128, "bf16")):
        yield _build(capability, 16, head_dim, dtype, IMAGE)


def _build(capability: int, heads: int, head_dim: int, dtype: str, longest: int = LONG_ROW) -> Build:
    shape = encoder_tiles(head_dim, 4 if dtype == "fp32" else 2, longest)
    # the newest instructions take 64 rows at a time
    feature: Feature = matrix_feature(capability) if shape.queries >= 64 else "mma"
    return Build(
        name=f"h{heads} d{head_dim} {dtype}{' long rows' if longest > LONG_ROW else ''}",
        kernel=encoder_attention_kernel,
        signature={"qkv": f"*{dtype}", "starts": "*i32", "out": f"*{dtype}", "scale": "fp32", "tiles": "i32"},
        constants=encoder_constants(heads, head_dim, shape),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        divisible=("qkv", "out"),
        features=frozenset({feature}),
    )
