"""Ahead-of-time builds of `quire.kernels.gpu.quantized.quantize_f8`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.chip import has_eight_bits
from quire.kernels.gpu.quantized.quantize_f8 import block_of, num_warps, quantize_f8_kernel
from quire.kernels.linear.activation import GATES, Gate


def builds(capability: int) -> Iterator[Build]:
    """Before qkv and gate of 8B models, and before down: alone and with the gate; the widest are passed over twice."""
    if has_eight_bits(capability):
        yield _build("add norm fp8 d4096", 4096, ("residual", "norm_weight", "total"))
        yield _build("fp8 d14336", 14336, ())
        yield _build("static fp8 d14336", 14336, ("input_scale",))
        yield _build("fp8 d28672", 28672, ())
        for gate in GATES:
            yield _build(f"{gate} fp8 d14336", 14336, (), gate)
        yield _build("silu fp8 d28672", 28672, (), "silu")


def _build(name: str, size: int, more: tuple[str, ...], gate: Gate | None = None) -> Build:
    kinds = {"x": "*bf16", "residual": "*bf16", "norm_weight": "*bf16", "input_scale": "*fp32"}
    kinds |= {"codes": "*fp8e4nv", "scales": "*fp32", "total": "*bf16"}
    tensors = {key: kind for key, kind in kinds.items() if key in ("x", "codes", "scales", *more)}
    block = block_of(size)
    return Build(
        name,
        quantize_f8_kernel,
        {**tensors, "eps": "fp32"},
        {**dict.fromkeys(kinds.keys() - tensors.keys()), "D": size, "BLOCK": block, "KIND": gate},
        num_warps(block),
        divisible=tuple(tensors),
    )
