"""Ahead-of-time builds of `quire.kernels.gpu.prepare_inputs`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.prepare_inputs import TILE, prepare_inputs_kernel


def builds(capability: int) -> Iterator[Build]:
    """Blocks of 16 tokens and positions of one axis; neither ever changes in a worker."""
    tables = ("block_tables", "rows")
    longs = ("token_ids", "positions", "slot_mapping")
    ints = ("query_starts", "seq_lens", "slots")
    sizes = ("row_stride", "axis_stride", "num_rows", "num_tokens", "slot_tokens", "slot_blocks")
    yield Build(
        name="prepare_inputs block 16",
        kernel=prepare_inputs_kernel,
        signature={
            "tokens": "*i32",
            "known": "*i64",
            **dict.fromkeys(tables, "*i32"),
            **dict.fromkeys(longs, "*i64"),
            **dict.fromkeys(ints, "*i32"),
            **dict.fromkeys(sizes, "i32"),
        },
        constants={"AXES": 1, "BLOCK_SIZE": 16, "TILE": TILE},
        num_warps=4,
        num_stages=1,
        divisible=("tokens", "known", *tables, *longs, *ints),
    )
