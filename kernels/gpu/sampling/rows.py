"""Rows of logits, cut into chunks: what the kernels that reduce them share.

One program reduces one chunk of one row, so that a single row keeps many multiprocessors busy, and a small second
kernel merges the chunks of each row. The chunks do not hang on the number of rows, so neither do the results.
"""

import triton
import triton.language as tl

_WHOLE = "seeds positions output_index top_k rows slots num_tokens num_prompt"
_FLOAT = "floor temperature top_p min_p repetition presence frequency"
COLUMNS = {**dict.fromkeys(_WHOLE.split(), "*i64"), **dict.fromkeys(_FLOAT.split(), "*fp32")}
"""Parameters of each row. They are read one by one and may begin anywhere in the step's upload, so that kernels must
not be specialized on where: that would compile them again for odd numbers of rows."""


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
