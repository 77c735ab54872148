"""Ahead-of-time builds of `quire.kernels.gpu.quantized.quantize_f8_blocks`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.chip import has_eight_bits
from quire.kernels.gpu.quantized.quantize_f8 import num_warps
from quire.kernels.gpu.quantized.quantize_f8_blocks import quantize_f8_blocks_kernel, stretch_of
from quire.kernels.linear.activation import GATES, Gate
from quire.kernels.linear.linear_f8_blocks import SIDE


def builds(capability: int) -> Iterator[Build]:
    """Before qkv and gate of 8B models, and before down: alone and with the gate."""
    if has_eight_bits(capability):
        yield _build("add norm fp8 blocks d4096", 4096, ("residual", "norm_weight", "total"))
        yield _build("fp8 blocks d12288", 12288, ())
        for gate in GATES:
            yield _build(f"{gate} fp8 blocks d12288", 12288, (), gate)


def _build(name: str, size: int, more: tuple[str, ...], gate: Gate | None = None) -> Build:
    kinds = {"x": "*bf16", "residual": "*bf16", "norm_weight": "*bf16"}
    kinds |= {"codes": "*fp8e4nv", "scales": "*fp32", "total": "*bf16"}
    tensors = {key: kind for key, kind in kinds.items() if key in ("x", "codes", "scales", *more)}
    block = stretch_of(size)
    return Build(
        name,
        quantize_f8_blocks_kernel,
        {**tensors, "eps": "fp32", "rows": "i32"},
        {**dict.fromkeys(kinds.keys() - tensors.keys()), "D": size, "BLOCK": block, "KIND": gate, "SIDE": SIDE},
        num_warps(block),
        divisible=tuple(tensors),
    )
