"""Ahead-of-time builds of `quire.kernels.gpu.sampling.sample`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.aot.builds.sampling.row_build import row_build
from quire.kernels.gpu.sampling.sample import sample_chunks_kernel, sample_rows_kernel
from quire.kernels.gpu.sampling.tiles import CHUNK
from quire.kernels.sampling.sample import TILE, TILE_STREAM, TOKEN_STREAM


def builds(capability: int) -> Iterator[Build]:
    """Both kernels for each type of logits; the second for vocabularies of 64 to 128, and of up to 256 thousand."""
    for dtype in ("fp32", "bf16", "fp16") if capability == 90 else ("bf16",):
        sizes = {"CHUNK": CHUNK, "TILE": TILE, "STREAM": TILE_STREAM}
        yield row_build(f"sample chunks {dtype}", sample_chunks_kernel, dtype, sizes, num_warps=4)
        for chunks in (32, 64) if capability == 90 else (32,):
            sizes = {"CHUNKS": chunks, "TILE": TILE, "STREAM": TOKEN_STREAM}
            yield row_build(f"sample rows {dtype} {chunks}", sample_rows_kernel, dtype, sizes, num_warps=4)
