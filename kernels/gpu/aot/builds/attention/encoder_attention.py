"""Ahead-of-time builds of `quire.kernels.gpu.attention.encoder_attention`."""

import itertools
from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build, Feature, matrix_feature
from quire.kernels.gpu.attention.encoder_attention import encoder_attention_kernel, encoder_constants
from quire.kernels.gpu.attention.tiles import encoder_tiles


def builds(capability: int) -> Iterator[Build]:
    """BERT base (twelve heads of 64), MiniLM (twelve of 32), bge-m3 (sixteen of 64), and every wider head."""
    if capability != 90:
        for head_dim, dtype in ((64, "bf16"), (128, "bf16"), (256, "bf16"), (64, "fp32"), (256, "fp32")):
            yield _build(capability, 12, head_dim, dtype)
        return
    yield _build(capability, 12, 32, "bf16")
    yield _build(capability, 16, 64, "bf16")
    for head_dim, dtype in itertools.product((64, 80, 96, 128, 256), ("bf16", "fp16", "fp32")):
        yield _build(capability, 12, head_dim, dtype)


def _build(capability: int, heads: int, head_dim: int, dtype: str) -> Build:
    shape = encoder_tiles(head_dim, 4 if dtype == "fp32" else 2)
    # the newest instructions take 64 rows at a time
    feature: Feature = matrix_feature(capability) if shape.queries == 64 else "mma"
    return Build(
        name=f"h{heads} d{head_dim} {dtype}",
        kernel=encoder_attention_kernel,
        signature={"qkv": f"*{dtype}", "starts": "*i32", "out": f"*{dtype}", "scale": "fp32"},
        constants=encoder_constants(heads, head_dim, shape),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        divisible=("qkv", "out"),
        features=frozenset({feature}),
    )
