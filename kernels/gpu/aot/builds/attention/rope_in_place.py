"""Ahead-of-time builds of `quire.kernels.gpu.attention.rope_in_place`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.attention.rope_in_place import NUM_WARPS, rope_in_place_constants, rope_in_place_kernel


def builds(capability: int) -> Iterator[Build]:
    """Sixteen heads of a tower of vision: of 72 (Qwen3-VL), of 80 (Qwen2.5-VL), of 64."""
    forms = ((72, "bf16"), (72, "fp16"), (72, "fp32"), (80, "bf16"), (64, "bf16"))
    for head_dim, dtype in forms if capability == 90 else forms[:1]:
        signature = {"qkv": f"*{dtype}", "cos": "*fp32", "sin": "*fp32", "num_tokens": "i32"}
        yield Build(
            name=f"h16 d{head_dim} {dtype}",
            kernel=rope_in_place_kernel,
            signature=signature,
            constants=rope_in_place_constants(16, head_dim, head_dim // 2),
            num_warps=NUM_WARPS,
            divisible=("qkv", "cos", "sin"),
        )
