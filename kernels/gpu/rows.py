"""Rows of logits, cut into chunks: what the kernels that reduce them share.

One program reduces one chunk of one row, so that a single row keeps many multiprocessors busy, and a small second
kernel merges the chunks of each row. The chunks do not hang on the number of rows, so neither do the results.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from quire.kernels.gpu.build import Build

CHUNK = 4096
_TYPES = {
    "*i64": (
        "seeds",
        "positions",
        "output_index",
        "top_k",
        "token_ids",
        "ranks",
        "rows",
        "slots",
        "num_tokens",
        "num_prompt",
    ),
    "*i32": ("winners", "greater", "tokens", "bitmask", "counts"),
    "*u8": ("finite",),
    "i32": ("row_stride", "token_stride", "vocab", "chunks", "capacity", "num_ids", "words"),
}
"""What the kernels call their arguments of these types; all others but the logits are pointers to float32."""
_COUNTS = ("chunks", "capacity", "num_ids", "words")
"""Whole numbers of no known divisor."""


@triton.jit
def row_pointer(logits, row, row_stride):
    return logits + row.to(tl.int64) * row_stride


@triton.jit
def load_chunk(logits, row, row_stride, chunk, vocab, CHUNK: tl.constexpr):
    """The ids of a chunk, and its logits in float32; -inf stands behind the last."""
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(row_pointer(logits, row, row_stride) + ids, mask=ids < vocab, other=float("-inf"))
    return ids, x.to(tl.float32)


@triton.jit
def least_id(x, value, ids, vocab):
    """The least of `ids` at which x equals `value`; the last of the vocabulary if none does, as among NaN."""
    return tl.min(tl.where(x == value, ids, vocab - 1))


@triton.jit
def finite_or_zero(high):
    """The maximum that logits are shifted by: never the -inf of a row without tokens, whose difference is NaN."""
    return tl.where(high > float("-inf"), high, 0.0)


@triton.jit
def inverse_temperature(temperature):
    """Finite even for temperatures whose inverse is not, so that zero times it is zero."""
    return tl.minimum(1.0 / temperature, 3e38)


def row_build(
    name: str,
    kernel: Any,
    dtype: str,
    constants: Mapping[str, Any],
    num_warps: int,
    own_dtype: tuple[str, ...] = ("logits",),
) -> Build:
    """A build of a kernel over rows of logits in `dtype`, told from the names of its arguments.

    `own_dtype`: pointers in the type of the logits. `constants` may name more than the kernel takes.
    """
    types = {argument: kind for kind, arguments in _TYPES.items() for argument in arguments}
    types.update(dict.fromkeys(own_dtype, f"*{dtype}"))
    taken = {argument: constants[argument] for argument in kernel.arg_names if argument in constants}
    signature = {argument: types.get(argument, "*fp32") for argument in kernel.arg_names if argument not in taken}
    divisible = tuple(argument for argument in signature if argument not in _COUNTS)
    return Build(name, kernel, signature, taken, num_warps, divisible=divisible)
