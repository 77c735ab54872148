"""The floor of an operation: the bytes it must move through memory and its floating-point operations.

Each input is read once and each output written once; a product with an addition counts as two operations. Work that is
small beside these (exponentials, norms, block tables) is left out. Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """The floor of one call."""

    num_bytes: int
    """Read and written together."""
    num_flops: int = 0

    def seconds(self, bytes_per_second: float, flops_per_second: float) -> float:
        """The least time a device of these rates needs."""
        return max(self.num_bytes / bytes_per_second, self.num_flops / flops_per_second)


def rms_norm(tokens: int, hidden: int, itemsize: int, *, residual: bool) -> Cost:
    """x (and the residual) in, the norm (and the sum) out, the weight once."""
    return Cost((2 * (1 + residual) * tokens + 1) * hidden * itemsize)


def rope_store_kv(
    tokens: int, heads: int, kv_heads: int, head_dim: int, half: int, itemsize: int, cache_itemsize: int
) -> Cost:
    """Queries, keys and values in, with float32 angles and int64 slots; queries out, keys and values to the cache."""
    moved = (2 * heads + 2 * kv_heads) * head_dim * itemsize + 2 * kv_heads * head_dim * cache_itemsize
    return Cost(tokens * (moved + 2 * half * 4 + 8))


def rope_in_place(tokens: int, heads: int, head_dim: int, itemsize: int) -> Cost:
    """Queries and keys in and out, and float32 angles of whole heads."""
    return Cost(tokens * (4 * heads * head_dim * itemsize + head_dim * 4))


def gated_activation(tokens: int, intermediate: int, itemsize: int) -> Cost:
    """Gate and up in, one product out."""
    return Cost(3 * tokens * intermediate * itemsize)


def embed(tokens: int, hidden: int, itemsize: int) -> Cost:
    """A row of the table for each token, and its id."""
    return Cost(tokens * (2 * hidden * itemsize + 8))


def linear(tokens: int, inputs: int, outputs: int, itemsize: int, weight_itemsize: int) -> Cost:
    """The weight once, x in, the product out."""
    return Cost(
        inputs * outputs * weight_itemsize + tokens * (inputs + outputs) * itemsize, 2 * tokens * inputs * outputs
    )


def gated_linear(tokens: int, inputs: int, outputs: int, itemsize: int, weight_itemsize: int) -> Cost:
    """Like `linear`, where 2 * I go in: gate and up."""
    plain = linear(tokens, inputs, outputs, itemsize, weight_itemsize)
    return Cost(plain.num_bytes + tokens * inputs * itemsize, plain.num_flops)


def linear_groups(
    tokens: int, inputs: int, outputs: int, itemsize: int, bits: int, group_size: int, group_bytes: int
) -> Cost:
    """Like `linear`, on codes of so many bits; `group_bytes` are those of a group's scale and offset."""
    weight = outputs * inputs * bits // 8 + outputs * inputs // group_size * group_bytes
    plain = linear(tokens, inputs, outputs, itemsize, 0)
    return Cost(weight + plain.num_bytes, plain.num_flops)


def norm_linear(
    tokens: int, inputs: int, outputs: int, itemsize: int, weight_itemsize: int, *, residual: bool, gated: bool
) -> Cost:
    """Like `linear`, with the norm's weight; a residual goes in and the sum comes out; gated: O / 2 come out."""
    plain = linear(tokens, inputs, outputs, itemsize, weight_itemsize)
    more = inputs + 2 * residual * tokens * inputs - (tokens * outputs // 2 if gated else 0)
    return Cost(plain.num_bytes + more * itemsize, plain.num_flops)


def route(tokens: int, experts: int, k: int, itemsize: int) -> Cost:
    """The logits in, an expert (int32) and a weight (float32) of each choice out."""
    return Cost(tokens * (experts * itemsize + 8 * k))


def experts(tokens: int, k: int, reached: int, hidden: int, inner: int, itemsize: int, weight_bytes: float) -> Cost:
    """Three matrices of each expert that tokens reach; x in, the sum out, and the choice; three products a choice."""
    weights = 3 * reached * hidden * inner
    return Cost(int(weights * weight_bytes) + tokens * (2 * hidden * itemsize + 8 * k), 6 * tokens * k * hidden * inner)


def attention(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    itemsize: int,
    cache_itemsize: int,
    window: int | None = None,
) -> Cost:
    """Keys and values of every position that a row's tokens see, once for the row; queries in and results out."""
    positions = pairs = 0
    for query, length in zip(query_lens, seq_lens, strict=True):
        seen = window or length
        positions += min(length, seen + query - 1)
        pairs += sum(min(seen, last) for last in range(length - query + 1, length + 1))
    queries = 2 * sum(query_lens) * heads * head_dim * itemsize
    return Cost(2 * positions * kv_heads * head_dim * cache_itemsize + queries, 4 * pairs * heads * head_dim)


def encoder_attention(lengths: Sequence[int], heads: int, head_dim: int, itemsize: int) -> Cost:
    """Queries, keys and values in, results out; every token meets all of its row."""
    size = heads * head_dim
    return Cost(4 * sum(lengths) * size * itemsize, 4 * sum(length**2 for length in lengths) * size)


def logits(rows: int, vocab: int, itemsize: int) -> Cost:
    """One pass over the logits; what comes out is a few numbers a row."""
    return Cost(rows * vocab * itemsize)


def copy_blocks(blocks: int, block_size: int, kv_heads: int, head_dim: int, itemsize: int) -> Cost:
    """Keys and values of each block, read and written."""
    return Cost(4 * blocks * block_size * kv_heads * head_dim * itemsize)


def prepare_inputs(tokens: int, rows: int) -> Cost:
    """Id, position and slot of each token (int64) out, id and block in (int32); three numbers of a row in and out, and
    its count (int64) in."""
    return Cost(tokens * (3 * 8 + 2 * 4) + rows * (6 * 4 + 8))


def append_tokens(rows: int) -> Cost:
    """Slot, count and id of each row (int64) in, count and id (int32) out."""
    return Cost(rows * (4 * 8 + 4))


def tile_schedule(rows: int) -> Cost:
    """Two int32 of each row in, two out."""
    return Cost(rows * 4 * 4)
