"""Builds of the kernels over rows of logits: their arguments have one meaning, hence one type, under one name."""

from collections.abc import Mapping
from typing import Any

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.sampling.rows import COLUMNS

_COUNTS = dict.fromkeys(["chunks", "num_ids", "words"], "i32")
_OTHERS = {
    **dict.fromkeys(["token_ids", "ranks"], "*i64"),
    **dict.fromkeys(["winners", "greater", "tokens", "bitmask", "counts"], "*i32"),
    **dict.fromkeys(["row_stride", "token_stride", "vocab", "capacity"], "i32"),
    "finite": "*u8",
}


def row_build(name: str, kernel: Any, dtype: str, constants: Mapping[str, Any], num_warps: int) -> Build:
    """A build for logits in `dtype`. `constants` may name more than the kernel takes.

    What is no parameter, count or id is a pointer to float32.
    """
    types = {**COLUMNS, **_COUNTS, **_OTHERS, "logits": f"*{dtype}", "gathered": f"*{dtype}"}
    taken = {argument: constants[argument] for argument in kernel.arg_names if argument in constants}
    signature = {argument: types.get(argument, "*fp32") for argument in kernel.arg_names if argument not in taken}
    divisible = tuple(argument for argument in signature if argument not in COLUMNS | _COUNTS)
    return Build(name, kernel, signature, taken, num_warps, divisible=divisible)
