"""Ahead-of-time builds of `quire.kernels.gpu.linear.embedding`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.embedding import embed_shard_kernel
from quire.kernels.gpu.linear.tiles import EMBEDDING_COLUMNS


def builds(capability: int) -> Iterator[Build]:
    """Llama's hidden size of 8 billion parameters; other sizes differ in a constant."""
    for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
        yield Build(
            name=f"embed d4096 {dtype}",
            kernel=embed_shard_kernel,
            signature={"token_ids": "*i64", "weight": f"*{dtype}", "out": f"*{dtype}", "first": "i32", "count": "i32"},
            constants={"D": 4096, "BLOCK": EMBEDDING_COLUMNS},
            num_warps=4,
            divisible=("token_ids", "weight", "out"),
        )
