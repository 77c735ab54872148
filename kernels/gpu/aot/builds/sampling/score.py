"""Ahead-of-time builds of `quire.kernels.gpu.sampling.score`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.aot.builds.sampling.row_build import row_build
from quire.kernels.gpu.sampling.score import (
    best_chunks_kernel,
    best_rows_kernel,
    finite_rows_kernel,
    score_chunks_kernel,
    score_rows_kernel,
)
from quire.kernels.gpu.sampling.tiles import CHUNK


def builds(capability: int) -> Iterator[Build]:
    """The kernels over chunks for each type of logits, and those that merge up to 64 chunks of a row."""
    for dtype in ("fp32", "bf16", "fp16") if capability == 90 else ("bf16",):
        yield row_build(f"finite {dtype}", finite_rows_kernel, dtype, {"CHUNK": CHUNK}, num_warps=4)
        yield row_build(f"best chunks {dtype}", best_chunks_kernel, dtype, {"CHUNK": CHUNK}, num_warps=4)
        yield row_build(f"score chunks {dtype}", score_chunks_kernel, dtype, {"CHUNK": CHUNK}, num_warps=4)
        yield row_build(f"score rows {dtype}", score_rows_kernel, dtype, {"CHUNKS": 64}, num_warps=1)
    yield row_build("best rows", best_rows_kernel, "fp32", {"CHUNKS": 64}, num_warps=1)
