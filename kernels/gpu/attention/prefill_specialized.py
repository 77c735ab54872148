"""Prefill attention for Hopper with specialized warps: one group of warps only moves pages of keys and values into
shared memory, two others compute, 64 query rows each, and wait for nothing but a full buffer.

What the compiler (Triton 3.6) needs for that shapes the kernel, and the ahead-of-time test proves that it still does:
four warps asked for; keys, values and queries by descriptor, the queries' made in the kernel; one loop over keys, no
branch but what is known before, no while, no early return. So every tile is masked, and a program without work is one
whose outer loop runs no time. Chunks and tokens that look ahead are the plain body's.

Shape legend: T tokens, R rows, K key-value heads, G query heads of each, D head dim.
"""

import triton
import triton.language as tl

from quire.kernels.gpu.attention.query_tile import QUERIES, locate, seen, sinks_of, store
from quire.kernels.gpu.attention.softmax import begun, between, capped, exponent_scale, weighed


@triton.jit(do_not_specialize=["window", "num_rows", "num_tokens", "table_width"])
def prefill_specialized(
    query,
    keys,
    values,
    out,
    block_tables,
    slots,
    seq_lens,
    query_starts,
    tiles,
    sinks,
    key_scale,
    value_scale,
    scale,
    soft_cap,
    window,
    num_rows,
    num_tokens,
    table_width,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:
    """As `prefill_plain`; keys, values: descriptors of [num_blocks, block_size, K * D] with boxes [1, KEYS, D].

    KEYS divides BLOCK_SIZE and is at most the window.
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    all_rows = tl.num_programs(0) * num_tokens * GROUP
    queries = tl.make_tensor_descriptor(query, [all_rows, HEAD_DIM], [HEAD_DIM, 1], [QUERIES, HEAD_DIM])
    if key_scale is not None:
        scale *= tl.load(key_scale + head)
    factor = exponent_scale(scale, soft_cap)
    rows = tl.arange(0, QUERIES)

    has_work = tl.where(tile < tl.load(tiles + num_rows), 1, 0)
    for _ in tl.range(0, has_work):
        row, token, tokens, position = locate(tiles, query_starts, seq_lens, num_rows, tile, GROUP)
        oldest, newest = seen(position, token, tokens, window, None, 0, QUERIES, GROUP, False)
        table = block_tables + tl.load(slots + row).to(tl.int64) * table_width
        positions = position + rows // GROUP
        highest, total = begun(sinks_of(sinks, head, rows, GROUP), QUERIES)
        acc = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
        q = queries.load([(head * num_tokens + token) * GROUP, 0]).to(COMPUTE)
        for step in tl.range(oldest // KEYS, newest // KEYS + 1, warp_specialize=True):
            start = step * KEYS
            # A weight of zero does not silence a NaN in a value, so no value is loaded that no token sees: the first
            # tile is moved up to the oldest position, the last one down to the newest. What sticks out of the page is
            # zeros, what is loaded twice counts once.
            origin = tl.minimum(tl.maximum(start, oldest), newest + 1 - KEYS)
            block = tl.load(table + start // BLOCK_SIZE)
            place = start % BLOCK_SIZE + origin - start
            k = keys.load([block, place, head * HEAD_DIM]).reshape(KEYS, HEAD_DIM).to(COMPUTE)
            scores = capped(tl.dot(q, k.T), scale, soft_cap)
            low = start - origin
            high = tl.minimum(positions - origin, low + KEYS - 1)
            if window is None:
                scores = between(scores, low, high[:, None])
            else:
                scores = between(scores, tl.maximum(positions - window + 1 - origin, low)[:, None], high[:, None])
            weights, shrink, highest, total = weighed(scores, factor, highest, total)
            v = values.load([block, place, head * HEAD_DIM]).reshape(KEYS, HEAD_DIM).to(COMPUTE)
            acc = tl.dot(weights.to(COMPUTE), v, acc * shrink[:, None])
        store(out, acc, total, value_scale, head, token, tokens, rows, GROUP, HEAD_DIM)
