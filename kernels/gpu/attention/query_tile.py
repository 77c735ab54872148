"""A tile of queries: up to 128 rows that share a key-value head, where it lies and which keys it sees.

Queries lie as [K, T, G, D], so the G query heads of consecutive tokens are consecutive rows of one matrix
[K * T * G, D], and one reading of a key serves them all. Shape legend: T tokens, R rows of the step, K key-value
heads, G query heads of each (GROUP), H = K * G, D head dim.
"""

import triton
import triton.language as tl

from quire.kernels.attention.tile_schedule import QUERY_ROWS_PER_TILE
from quire.kernels.gpu.attention.tile_schedule import oldest_seen, row_of_tile

QUERIES = tl.constexpr(QUERY_ROWS_PER_TILE)
"""Rows of a tile. Those that no token fills (G does not divide 128; a row's last tile) are computed, not stored."""


@triton.jit
def locate(tiles, query_starts, seq_lens, num_rows, tile, GROUP: tl.constexpr) -> tuple[tl.tensor, ...]:
    """(row, first token, tokens from it to the row's last, its position) of a tile.

    A row's last tile, which sees the most keys, comes first: the long work starts early.
    """
    row = row_of_tile(tiles, num_rows, tile)
    before = (tl.load(tiles + row + 1) - 1 - tile) * (QUERIES // GROUP)
    start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - start
    return row, start + before, query_len - before, tl.load(seq_lens + row) - query_len + before


@triton.jit
def seen(
    position,
    token,
    tokens,
    window,
    last_visible,
    first_row,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNKED: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """(oldest, newest) position that a token in rows first_row.. sees, ROWS of them, of the tile at `position`."""
    oldest = 0
    if window is not None:
        oldest = tl.maximum(oldest_seen(position + first_row // GROUP, window, CHUNKED), 0)
    last = tl.minimum(tl.minimum((first_row + ROWS - 1) // GROUP, QUERIES // GROUP - 1), tokens - 1)
    newest = position + last
    if last_visible is not None:
        newest = tl.load(last_visible + token + last)
    return oldest, newest


@triton.jit
def sinks_of(sinks, head, rows, GROUP: tl.constexpr) -> tl.tensor:
    """The sink of each of `rows` out of sinks [H], or None."""
    sink = None
    if sinks is not None:
        sink = tl.load(sinks + head * GROUP + rows % GROUP)
    return sink


@triton.jit
def store(out, acc, total, value_scale, head, token, tokens, rows, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr) -> None:
    """Write acc / total, [m, D padded], into out [T, H * D] where one of `rows` [m] holds a token."""
    dims = tl.arange(0, acc.shape[1])
    # one division a row, not an element
    share = 1.0 / total
    if value_scale is not None:
        share *= tl.load(value_scale + head)
    held = (rows // GROUP < tokens) & (rows < QUERIES // GROUP * GROUP)
    heads = (token + rows // GROUP).to(tl.int64) * (tl.num_programs(0) * GROUP) + head * GROUP + rows % GROUP
    places = out + heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(places, (acc * share[:, None]).to(out.dtype.element_ty), mask=held[:, None] & (dims < HEAD_DIM)[None, :])
