"""Ahead-of-time builds of `quire.kernels.gpu.linear.vector_linear`."""

from collections.abc import Iterator

import triton

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.tiles import vector_tiles
from quire.kernels.gpu.linear.vector_linear import vector_linear_kernel


def builds(capability: int) -> Iterator[Build]:
    """The layers of the published 8B models, each once for the kernels it comes to."""
    yield _build("o and down 8b", "bf16", 4096, norm="")
    yield _build("qkv 8b", "bf16", 4096)
    yield _build("gate up 8b", "bf16", 4096, gate="silu")
    if capability != 90:
        return
    for num_tokens in (2, 4):
        yield _build("o and down 8b", "bf16", 4096, num_tokens, norm="")
    yield _build("qkv 8b", "bf16", 4096, 2)
    yield _build("gate up 8b", "bf16", 4096, 2, gate="silu")
    yield _build("qkv first layer", "bf16", 4096, norm="first")
    yield _build("qkv bias", "bf16", 4096, bias=True)
    yield _build("gate up gelu", "bf16", 4096, gate="gelu")
    yield _build("gate up gelu_tanh", "bf16", 4096, gate="gelu_tanh")
    yield _build("gate up gains", "bf16", 3840, gate="gelu_tanh", gains="fp32")
    yield _build("uneven", "bf16", 2880, bias=True, norm="")
    yield _build("o and down 8b", "fp16", 4096, norm="")


def _build(name, dtype, size_in, num_tokens=1, norm="added", gate=None, bias=False, gains=""):
    """`norm`: "" for none, "first" without residual, "added" with one."""
    tiles = vector_tiles(num_tokens, bool(norm))
    absent = {
        **({} if norm else {"norm_weight": None, "total": None, "residual": None}),
        **({} if norm != "first" else {"total": None, "residual": None}),
        **({} if bias else {"bias": None}),
    }
    tensors = ("x", "residual", "norm_weight", "weight", "bias", "out", "total")
    pointers = {name: f"*{dtype}" for name in tensors if name not in absent}
    if gains:
        pointers["norm_weight"] = f"*{gains}"
    numbers = {"num_tokens": "i32", "size_in": "i32", "size_out": "i32", "eps": "fp32"}
    return Build(
        f"{name} {dtype} {num_tokens} x {tiles['block_o']}x{tiles['block_i']}",
        vector_linear_kernel,
        {**pointers, **numbers},
        {
            **absent,
            "GATE": gate,
            "EVEN": size_in % tiles["block_i"] == 0,
            "TOKENS": triton.next_power_of_2(num_tokens),
            "BLOCK_O": tiles["block_o"],
            "BLOCK_I": tiles["block_i"],
        },
        tiles["num_warps"],
        divisible=(*pointers, "size_in", "size_out"),
    )
