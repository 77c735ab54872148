"""Ahead-of-time builds of the products of experts: `quire.kernels.gpu.experts.products`, `few` and `sort`."""

from collections.abc import Iterator
from typing import Any

import torch

from quire.kernels.gpu.aot.build import Build, matrix_feature
from quire.kernels.gpu.experts.few import few_inner_kernel, few_outer_kernel
from quire.kernels.gpu.experts.products import experts_inner_kernel, experts_outer_kernel, sum_experts_kernel
from quire.kernels.gpu.experts.sort import BLOCK, sort_by_expert_kernel
from quire.kernels.gpu.experts.tiles import SUM_BLOCK, few_tiles, product_tiles

_EXPERTS, _K, _HIDDEN, _INNER = 128, 8, 2048, 768


def builds(capability: int) -> Iterator[Build]:
    """The 128 experts of Qwen3-30B-A3B, 8 a token: one token, decodes, a prompt; sizes are no constants."""
    for biased in (False, True):
        yield _few(biased, 1, gated=True)
        yield _few(biased, 1, gated=False)
        yield _few(biased, 4, gated=False)
    yield Build(
        "sort",
        sort_by_expert_kernel,
        {"ids": "*i32", "pairs": "*i32", "starts": "*i32", "num_pairs": "i32", "first": "i32"},
        {"BLOCK": BLOCK},
        num_warps=4,
        divisible=("ids", "pairs", "starts"),
    )
    for num_tokens in (16, 512, 8192):
        for biased in (False, True):
            yield _product(capability, num_tokens, biased, gated=True)
            yield _product(capability, num_tokens, biased, gated=False)
    yield Build(
        "sum",
        sum_experts_kernel,
        {"results": "*bf16", "ids": "*i32", "weights": "*fp32", "out": "*bf16", "hidden": "i32", "first": "i32"},
        {"EXPERTS": _EXPERTS, "K": _K, "BLOCK": SUM_BLOCK},
        num_warps=4,
        divisible=("results", "ids", "weights", "out", "hidden"),
    )


def _gate(biased: bool) -> str:
    """The gate of experts that have biases, those of gpt-oss, and of those that have none."""
    return "swigluoai" if biased else "silu"


def _few(biased: bool, num_tokens: int, *, gated: bool) -> Build:
    tiles = few_tiles(num_tokens, _INNER if gated else _HIDDEN, torch.bfloat16, gated=gated)
    weight, sizes = ("gate_up", ("hidden", "inner")) if gated else ("down", ("inner", "hidden"))
    tensors = {"x": "*bf16", "ids": "*i32", "weights": "*fp32", weight: "*bf16", f"{weight}_bias": "*bf16"}
    constants: dict[str, Any] = {"KIND": _gate(biased)} if gated else {"K_BLOCK": _K}
    if not biased:
        del tensors[f"{weight}_bias"]
        constants[f"{weight}_bias"] = None
    tensors["out"] = "*bf16"
    blocks = {"BLOCK_O": tiles["block_o"], "BLOCK_I": tiles["block_i"]}
    return Build(
        f"few, {num_tokens} {'inner' if gated else 'outer'}{' with biases' if biased else ''}",
        few_inner_kernel if gated else few_outer_kernel,
        {**tensors, **dict.fromkeys((*sizes, "first"), "i32")},
        {"EXPERTS": _EXPERTS, "K": _K, **blocks, **constants},
        tiles["num_warps"],
        tiles["num_stages"],
        (*tensors, *sizes),
        frozenset({"wide_copy"}),
    )


def _product(capability: int, num_tokens: int, biased: bool, *, gated: bool) -> Build:
    tiles = product_tiles(num_tokens * _K, _EXPERTS, torch.bfloat16, gated=gated)
    weight, sizes = ("gate_up", ("hidden", "inner")) if gated else ("down", ("inner", "hidden"))
    bias = {f"{weight}_bias": "*bf16"} if biased else {}
    tensors = {"x": "*bf16", "pairs": "*i32", "starts": "*i32", weight: "*bf16", **bias, "out": "*bf16"}
    constants: dict[str, Any] = {"K": _K, "KIND": _gate(biased)} if gated else {}
    if not biased:
        constants[f"{weight}_bias"] = None
    blocks = {"ROWS": tiles["rows"], "BLOCK_O": tiles["block_o"], "BLOCK_I": tiles["block_i"]}
    return Build(
        f"{'inner' if gated else 'outer'}, {tiles['rows']} rows{' with biases' if biased else ''}",
        experts_inner_kernel if gated else experts_outer_kernel,
        {**tensors, **dict.fromkeys(sizes, "i32")},
        {**constants, "EXPERTS": _EXPERTS, "EXPERTS_BLOCK": _EXPERTS, **blocks},
        tiles["num_warps"],
        tiles["num_stages"],
        (*tensors, *sizes),
        frozenset({matrix_feature(capability), "wide_copy"}),
    )
