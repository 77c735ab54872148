"""Ahead-of-time builds of `quire.kernels.gpu.linear.skinny_linear`."""

from collections.abc import Iterator

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.linear.skinny_linear import add_parts_kernel, skinny_linear_kernel
from quire.kernels.gpu.linear.tiles import ADD_BLOCK, MOST_TOKENS, skinny_tiles


def builds(capability: int) -> Iterator[Build]:
    """The layers of the published 8B models and a small one that is split, each once for the kernels it comes to."""
    yield _build("qkv 8b", "bf16", (4096, 6144), norm="added")
    yield _build("o and down 8b", "bf16", (4096, 4096))
    yield _build("gate up 8b", "bf16", (4096, 28672), norm="added", gate="silu")
    yield _build("split", "bf16", (4096, 1024))
    yield _add_build("add parts", "bf16", None)
    if capability != 90:
        return
    yield _build("qkv first layer", "bf16", (4096, 6144), norm="first")
    yield _build("qkv bias", "bf16", (4096, 6144), norm="added", bias=True)
    yield _build("head 8b", "bf16", (4096, 128256), norm="added")
    yield _build("gate up gelu", "bf16", (4096, 28672), norm="added", gate="gelu")
    yield _build("gate up gelu_tanh", "bf16", (4096, 28672), norm="added", gate="gelu_tanh")
    yield _build("split norm 16 tokens", "bf16", (4096, 1024), num_tokens=16, norm="added")
    yield _build("uneven", "bf16", (2880, 4096), bias=True)
    yield _build("o and down 8b", "fp16", (4096, 4096))
    yield _build("gate up 8b", "fp16", (4096, 28672), gate="silu")
    yield _add_build("add parts gate", "bf16", "silu")


def _build(name, dtype, sizes, num_tokens=1, norm="", gate=None, bias=False):
    """`norm`: "" for none, "first" without residual, "added" with one."""
    tiles = skinny_tiles(num_tokens, *sizes)
    block_o, block_i, is_split = tiles["block_o"], tiles["block_i"], tiles["parts"] > 1
    absent = {
        **({} if norm else {"norm_weight": None, "total": None, "residual": None}),
        **({} if norm != "first" else {"total": None, "residual": None}),
        **({} if norm and is_split else {"squares": None}),
        **({} if bias and not is_split else {"bias": None}),
    }
    tensors = ("x", "residual", "norm_weight", "weight", "bias", "out", "total", "squares")
    floats = {"out", "squares"} if is_split else set()
    pointers = {name: "*fp32" if name in floats else f"*{dtype}" for name in tensors if name not in absent}
    numbers = {"num_tokens": "i32", "size_in": "i32", "size_out": "i32", "eps": "fp32", "steps": "i32"}
    return Build(
        f"{name} {dtype} {block_o}x{block_i}",
        skinny_linear_kernel,
        {**pointers, **numbers},
        {
            **absent,
            "GATE": None if is_split else gate,
            "SPLIT": is_split,
            "EVEN": sizes[0] % block_i == 0,
            "BLOCK_O": block_o,
            "BLOCK_I": block_i,
            "WARPS": tiles["num_warps"],
        },
        tiles["num_warps"],
        tiles["num_stages"],
        (*pointers, "size_in", "size_out"),
        frozenset({"mma", "wide_copy"}),
    )


def _add_build(name, dtype, gate):
    sizes = ("size_in", "size_out")
    return Build(
        f"{name} {dtype}",
        add_parts_kernel,
        {"sums": "*fp32", "squares": "*fp32", "out": f"*{dtype}", **dict.fromkeys(sizes, "i32"), "eps": "fp32"},
        {"bias": None, "NORM": True, "GATE": gate, "PARTS": 4, "ROWS": MOST_TOKENS, "BLOCK": ADD_BLOCK},
        4,
        divisible=("sums", "squares", "out", *sizes),
    )
