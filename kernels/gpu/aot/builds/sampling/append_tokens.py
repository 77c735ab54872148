"""Ahead-of-time builds of `quire.kernels.gpu.sampling.append_tokens`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.sampling.append_tokens import ROWS, append_tokens_kernel


def builds(capability: int) -> Iterator[Build]:
    """One for every step; the columns may begin anywhere in the step's upload."""
    longs = ("known", "slots", "token_ids")
    yield Build(
        name="append_tokens",
        kernel=append_tokens_kernel,
        signature={"tokens": "*i32", **dict.fromkeys(longs, "*i64"), "num_rows": "i32", "slot_tokens": "i32"},
        constants={"ROWS": ROWS},
        num_warps=4,
        divisible=("tokens", "known"),
    )
