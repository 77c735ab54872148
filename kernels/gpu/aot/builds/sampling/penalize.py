"""Ahead-of-time builds of `quire.kernels.gpu.sampling.penalize`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.aot.builds.sampling.row_build import row_build
from quire.kernels.gpu.sampling.penalize import APPLY, CLEAR, COUNT, mask_tokens_kernel, penalize_kernel
from quire.kernels.gpu.sampling.tiles import CHUNK, HISTORY_BLOCK


def builds(capability: int) -> Iterator[Build]:
    """The three stages of the penalties, and the mask. Logits are float32 wherever they are changed."""
    for name, stage in (("clear", CLEAR), ("count", COUNT), ("apply", APPLY)):
        constants = {"STAGE": stage, "CLEAR": CLEAR, "COUNT": COUNT, "BLOCK": HISTORY_BLOCK}
        yield row_build(f"penalize {name}", penalize_kernel, "fp32", constants, num_warps=4)
    yield row_build("mask", mask_tokens_kernel, "fp32", {"CHUNK": CHUNK}, num_warps=4)
