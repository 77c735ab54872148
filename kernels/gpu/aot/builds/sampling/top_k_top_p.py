"""Ahead-of-time builds of `quire.kernels.gpu.sampling.top_k_top_p`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.aot.builds.sampling.row_build import row_build
from quire.kernels.gpu.sampling.tiles import CHUNK, PIVOTS, SEARCH_BLOCK, WARPS
from quire.kernels.gpu.sampling.top_k_top_p import (
    BRACKET,
    SUMMARY,
    SURVEY,
    gather_kernel,
    summarize_kernel,
    survey_kernel,
)
from quire.kernels.gpu.sampling.top_k_top_p_search import search_kernel


def builds(capability: int) -> Iterator[Build]:
    """The four kernels for vocabularies of 64 to 128 thousand tokens, and of up to 256 thousand."""
    sizes = {"CHUNK": CHUNK, "PIVOTS": PIVOTS, "SUMMARY": SUMMARY, "SURVEY": SURVEY, "BRACKET": BRACKET}
    kernels = {"summarize": summarize_kernel, "survey": survey_kernel, "gather": gather_kernel, "search": search_kernel}
    for dtype in ("fp32", "bf16", "fp16") if capability == 90 else ("bf16",):
        for chunks in (32, 64) if capability == 90 and dtype != "fp16" else (32,):
            for name, kernel in kernels.items():
                if chunks == 64 and name in ("summarize", "search"):
                    continue  # does not hang on the number of chunks
                yield row_build(
                    f"top_k_top_p {name} {dtype} {chunks}",
                    kernel,
                    dtype,
                    {**sizes, "CHUNKS": chunks, "BLOCK": SEARCH_BLOCK},
                    num_warps=WARPS[name],
                )
