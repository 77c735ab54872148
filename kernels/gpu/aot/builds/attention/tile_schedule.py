"""Ahead-of-time builds of `quire.kernels.gpu.attention.tile_schedule`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.attention.tile_schedule import fill_tile_schedule_kernel


def builds(capability: int) -> Iterator[Build]:
    """The tiles of a model with four query heads to a key-value head."""
    pointers = ("seq_lens", "query_starts", "prefill_tiles", "decode_tiles")
    for chunked in (False, True):
        yield Build(
            name=f"tile_schedule{' chunked' if chunked else ''}",
            kernel=fill_tile_schedule_kernel,
            signature={**dict.fromkeys(pointers, "*i32"), "num_rows": "i32", "window": "i32"},
            constants={"TOKENS": 32, "KEYS": 64, "CHUNKED": chunked},
            num_warps=4,
            divisible=pointers,
        )
