"""Prefill attention for any page size, head size and chip: keys are gathered by pointers through the block table, and
the compiler's pipeline loads the next tiles while one is computed.

Shape legend: T tokens, R rows, N slots, B blocks of a table, K key-value heads, G query heads of each, D head dim.
"""

import triton
import triton.language as tl

from quire.kernels.gpu.attention.query_tile import QUERIES, locate, seen, sinks_of, store
from quire.kernels.gpu.attention.softmax import begun, between, capped, exponent_scale, weighed
from quire.kernels.gpu.attention.tile_schedule import oldest_seen


@triton.jit
def _places(table, start, visible, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Rows of the cache, as a matrix [num_blocks * block_size, K * D], that hold positions start.. : int64 [KEYS]."""
    if BLOCK_SIZE >= KEYS:
        first = tl.load(table + start // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + start % BLOCK_SIZE
        places = first + tl.arange(0, KEYS)
    else:
        positions = start + tl.arange(0, KEYS)
        if visible is None:
            blocks = tl.load(table + positions // BLOCK_SIZE)
        else:
            blocks = tl.load(table + positions // BLOCK_SIZE, mask=visible, other=0)
        places = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    return places


@triton.jit
def _sweep(
    first,
    stop,
    acc,
    highest,
    total,
    q,
    keys,
    values,
    table,
    positions,
    reach,
    oldest,
    newest,
    scale,
    soft_cap,
    window,
    head,
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """Take key tiles first..stop into (acc, highest, total). MASKED: some token does not see all of them.

    reach: the last position that each row sees.
    """
    # float32 is three products of its parts in 11 bits each; the registers do not hold those of the widest heads
    PRECISION: tl.constexpr = "tf32x3" if q.shape[1] <= 256 else "ieee"
    factor = exponent_scale(scale, soft_cap)
    dims = tl.arange(0, q.shape[1])
    within = (dims < HEAD_DIM)[None, :]
    width = tl.num_programs(0) * HEAD_DIM
    for step in tl.range(first, stop):
        start = step * KEYS
        if MASKED:
            visible = start + tl.arange(0, KEYS)
            visible = (visible >= oldest) & (visible <= newest)
            # hidden values are not even loaded: a weight of zero would not silence a NaN
            wanted = visible[:, None] & within
        else:
            visible = None
            wanted = None if q.shape[1] == HEAD_DIM else within
        places = _places(table, start, visible, BLOCK_SIZE, KEYS)
        offsets = places[:, None] * width + head * HEAD_DIM + dims[None, :]
        k = tl.load(keys + offsets, mask=wanted, other=None if wanted is None else 0.0).to(q.dtype)
        scores = capped(tl.dot(q, k.T, input_precision=PRECISION), scale, soft_cap)
        if MASKED:
            low = 0
            if window is not None:
                low = (oldest_seen(positions, window, CHUNKED) - start)[:, None]
            scores = between(scores, low, (reach - start)[:, None])
        weights, shrink, highest, total = weighed(scores, factor, highest, total)
        v = tl.load(values + offsets, mask=wanted, other=None if wanted is None else 0.0).to(q.dtype)
        acc = tl.dot(weights.to(q.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, highest, total


@triton.jit(do_not_specialize=["window", "num_rows", "num_tokens", "table_width"])
def prefill_plain(
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
    last_visible,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
    CHUNKED: tl.constexpr,
) -> None:
    """ROWS of a tile of queries; the grid is [K, any bound on the number of tiles, 128 / ROWS].

    query [K, T, G, D]; keys, values [num_blocks, block_size, K, D]; out [T, H * D]; block_tables [N, B = table_width];
    tiles [R + 1] the prefix sum of tiles over rows; soft_cap, window, sinks [H] and the scales [K] None or as in
    `paged_attention`; last_visible [T] where tokens look ahead, or None; PADDED_DIM: D padded to a power of two;
    COMPUTE: the type of the products' operands; CHUNKED: the window is a `Chunk`.
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    if tile >= tl.load(tiles + num_rows):
        return
    row, token, tokens, position = locate(tiles, query_starts, seq_lens, num_rows, tile, GROUP)
    first_row = tl.program_id(2) * ROWS
    if first_row // GROUP >= tl.minimum(tokens, QUERIES // GROUP):
        return
    rows = first_row + tl.arange(0, ROWS)
    oldest, newest = seen(position, token, tokens, window, last_visible, first_row, ROWS, GROUP, CHUNKED)
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_width
    if key_scale is not None:
        scale *= tl.load(key_scale + head)
    highest, total = begun(sinks_of(sinks, head, rows, GROUP), ROWS)
    acc = tl.zeros([ROWS, PADDED_DIM], tl.float32)

    dims = tl.arange(0, PADDED_DIM)
    positions = position + rows // GROUP
    reach = positions
    if last_visible is not None:
        reach = tl.load(last_visible + token + rows // GROUP, mask=rows // GROUP < tokens, other=0)
    offset = (head * num_tokens.to(tl.int64) + token) * GROUP
    filled = (rows // GROUP < tokens)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + (offset + rows)[:, None] * HEAD_DIM + dims[None, :], mask=filled, other=0.0).to(COMPUTE)

    # every token sees all of tiles whole..edge; those before, which there are with a window, and after need masks.
    # Where tokens look ahead, fewer are taken for whole than are.
    stop = newest // KEYS + 1
    whole = 0
    if window is not None:
        whole = tl.minimum((tl.maximum(oldest_seen(newest, window, CHUNKED), 0) + KEYS - 1) // KEYS, stop)
    edge = tl.maximum((position + first_row // GROUP + 1) // KEYS, whole)
    bounds = (oldest // KEYS, whole, edge, stop)
    for part in tl.static_range(1 if window is None else 0, 3):
        acc, highest, total = _sweep(
            bounds[part],
            bounds[part + 1],
            acc,
            highest,
            total,
            q,
            keys,
            values,
            table,
            positions,
            reach,
            oldest,
            newest,
            scale,
            soft_cap,
            window,
            head,
            part != 1,
            HEAD_DIM,
            BLOCK_SIZE,
            KEYS,
            CHUNKED,
        )
    store(out, acc, total, value_scale, head, token, tokens, rows, GROUP, HEAD_DIM)
