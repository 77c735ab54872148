"""Ahead-of-time builds of `quire.kernels.gpu.linear.activation`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.activation import activation_kernel, gated_activation_kernel
from quire.kernels.gpu.linear.tiles import ACTIVATION_TILES
from quire.kernels.linear.activation import ACTIVATIONS, GATES


def builds(capability: int) -> Iterator[Build]:
    """Llama's feed-forward size of 8 billion parameters; other sizes differ in a constant."""
    for kind in GATES:
        for dtype in ("bf16", "fp16") if capability == 90 else ("bf16",):
            yield Build(
                name=f"{kind} d14336 {dtype}",
                kernel=gated_activation_kernel,
                signature={"x": f"*{dtype}", "out": f"*{dtype}"},
                constants={"D": 14336, "BLOCK": ACTIVATION_TILES["block"], "KIND": kind},
                num_warps=ACTIVATION_TILES["num_warps"],
                divisible=("x", "out"),
            )
    for alone in ACTIVATIONS:
        yield Build(
            name=f"alone {alone} bf16",
            kernel=activation_kernel,
            signature={"x": "*bf16", "out": "*bf16", "size": "i64"},
            constants={"BLOCK": ACTIVATION_TILES["block"], "KIND": alone},
            num_warps=ACTIVATION_TILES["num_warps"],
            divisible=("x", "out"),
        )
