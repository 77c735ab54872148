"""Ahead-of-time builds of the products of experts: `quire.kernels.gpu.experts.products`, `few` and `sort`."""

from collections.abc import Iterator
from typing import Any

import torch

from quire.kernels.gpu.aot.build import Build, matrix_feature
from quire.kernels.gpu.experts.few import few_inner_kernel, few_outer_kernel
from quire.kernels.gpu.experts.products import experts_inner_kernel, experts_outer_kernel, sum_experts_kernel
from quire.kernels.gpu.experts.sort import BLOCK, sort_by_expert_kernel
from quire.kernels.gpu.experts.tiles import FEW_TILES, SUM_BLOCK, product_tiles

_EXPERTS, _K = 128, 8


def builds(capability: int) -> Iterator[Build]:
    """The 128 experts of Qwen3-30B-A3B, 8 a token: one token, decodes, a prompt; sizes are no constants."""
    yield _few("inner", few_inner_kernel, ("x", "ids", "weights", "gate_up", "out"), {"KIND": "silu"})
    yield _few("outer", few_outer_kernel, ("x", "ids", "down", "out"), {"K_BLOCK": _K})
    yield Build(
        "sort",
        sort_by_expert_kernel,
        {"ids": "*i32", "pairs": "*i32", "starts": "*i32", "num_pairs": "i32", "first": "i32"},
        {"BLOCK": BLOCK},
        num_warps=4,
        divisible=("ids", "pairs", "starts"),
    )
    for num_tokens in (16, 512, 8192):
        yield _product(capability, num_tokens, gated=True)
        yield _product(capability, num_tokens, gated=False)
    yield Build(
        "sum",
        sum_experts_kernel,
        {"results": "*bf16", "ids": "*i32", "weights": "*fp32", "out": "*bf16", "hidden": "i32", "first": "i32"},
        {"EXPERTS": _EXPERTS, "K": _K, "BLOCK": SUM_BLOCK},
        num_warps=4,
        divisible=("results", "ids", "weights", "out", "hidden"),
    )


def _few(name: str, kernel: Any, tensors: tuple[str, ...], constants: dict[str, Any]) -> Build:
    kinds = {"ids": "*i32", "weights": "*fp32"}
    sizes = ("inner", "hidden") if name == "outer" else ("hidden", "inner")
    return Build(
        f"few, {name}",
        kernel,
        {**{one: kinds.get(one, "*bf16") for one in tensors}, **dict.fromkeys((*sizes, "first"), "i32")},
        {"EXPERTS": _EXPERTS, "K": _K, "BLOCK_O": FEW_TILES["block_o"], "BLOCK_I": FEW_TILES["block_i"], **constants},
        FEW_TILES["num_warps"],
        FEW_TILES["num_stages"],
        (*tensors, "hidden", "inner"),
        frozenset({"wide_copy"}),
    )


def _product(capability: int, num_tokens: int, *, gated: bool) -> Build:
    tiles = product_tiles(num_tokens * _K, _EXPERTS, torch.bfloat16, gated=gated)
    weight, sizes = ("gate_up", ("hidden", "inner")) if gated else ("down", ("inner", "hidden"))
    tensors = {"x": "*bf16", "pairs": "*i32", "starts": "*i32", weight: "*bf16", "out": "*bf16"}
    blocks = {"ROWS": tiles["rows"], "BLOCK_O": tiles["block_o"], "BLOCK_I": tiles["block_i"]}
    return Build(
        f"{'inner' if gated else 'outer'}, {tiles['rows']} rows",
        experts_inner_kernel if gated else experts_outer_kernel,
        {**tensors, **dict.fromkeys(sizes, "i32")},
        {**({"K": _K, "KIND": "silu"} if gated else {}), "EXPERTS": _EXPERTS, "EXPERTS_BLOCK": _EXPERTS, **blocks},
        tiles["num_warps"],
        tiles["num_stages"],
        (*tensors, *sizes),
        frozenset({matrix_feature(capability), "wide_copy"}),
    )
