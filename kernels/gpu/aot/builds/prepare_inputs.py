"""Ahead-of-time builds of `quire.kernels.gpu.prepare_inputs`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.prepare_inputs import TILE, prepare_inputs_kernel


def builds(capability: int) -> Iterator[Build]:
    """Blocks of 16 tokens; positions of one axis, and those of three that have a shift: neither changes in a worker."""
    tables = ("block_tables", "rows")
    longs = ("token_ids", "positions", "slot_mapping")
    ints = ("query_starts", "seq_lens", "slots")
    sizes = ("row_stride", "axis_stride", "num_rows", "num_tokens", "slot_tokens", "slot_blocks")
    for name, shifted, axes in (("", False, 1), (" shifted 3 axes", True, 3)):
        yield Build(
            name=f"prepare_inputs block 16{name}",
            kernel=prepare_inputs_kernel,
            signature={
                "tokens": "*i32",
                "known": "*i64",
                **dict.fromkeys(tables, "*i32"),
                **dict.fromkeys(longs, "*i64"),
                **dict.fromkeys(ints, "*i32"),
                "shifts": "*i64",
                **dict.fromkeys(sizes, "i32"),
            },
            constants={"SHIFTED": shifted, "AXES": axes, "BLOCK_SIZE": 16, "TILE": TILE},
            num_warps=4,
            num_stages=1,
            divisible=("tokens", "known", *tables, *longs, *ints, "shifts"),
        )
