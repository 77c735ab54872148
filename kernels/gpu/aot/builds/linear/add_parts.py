"""Ahead-of-time builds of `quire.kernels.gpu.linear.add_parts`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.add_parts import add_parts_kernel
from quire.kernels.gpu.linear.tiles import ADD_BLOCK


def builds(capability: int) -> Iterator[Build]:
    """Four parts of 16 tokens."""
    yield _build("add parts", None)
    if capability == 90:
        yield _build("add parts gate", "silu")


def _build(name, gate):
    return Build(
        f"{name} bf16",
        add_parts_kernel,
        {"sums": "*fp32", "out": "*bf16", "size_out": "i32"},
        {"bias": None, "GATE": gate, "PARTS": 4, "ROWS": 16, "BLOCK": ADD_BLOCK},
        4,
        divisible=("sums", "out", "size_out"),
    )
