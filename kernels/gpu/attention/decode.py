"""Attention of rows that run one token: the cached keys of all rows are one list of tiles, dealt out evenly.

A fixed number of programs for each key-value head takes equal stretches of that list, so one long sequence spreads
over many and many short ones share one, and the grid depends on no length: a captured graph stays right. A row within
one stretch is finished there; of a row that several share each leaves a part, and `merge_splits` puts them together.

Floor: the visible keys and values once, 2 * K * D * (bytes of an element) for each position of each row, against
4 * H * D FLOPs; so the memory is the limit up to hundreds of query heads to a key-value head.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.attention.tile_schedule import KEYS_PER_TILE, TileSchedule
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu.attention.merge_splits import merge_splits
from quire.kernels.gpu.attention.softmax import LOG2E, capped, exponent_scale
from quire.kernels.gpu.attention.tile_schedule import oldest_seen, row_of_tile, size_of, tiles_of_program
from quire.kernels.gpu.attention.tiles import TYPES, decode_shape_key, decode_tiles
from quire.kernels.gpu.chip import chip_of
from quire.kernels.gpu.tile_table import Tiles, tile


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "table_stride", "window"])
def decode_kernel(
    query,
    keys,
    values,
    out,
    partial,
    partial_lse,
    block_tables,
    slots,
    seq_lens,
    query_starts,
    tiles,
    sinks,
    key_scale,
    value_scale,
    num_rows,
    num_tokens,
    table_stride,
    window,
    scale,
    soft_cap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COMPUTE: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """Grid (K, P). HEADS: key-value heads; ROWS, COLUMNS: GROUP and DIM, padded."""
    head = tl.program_id(0)
    program = tl.program_id(1)
    num_tiles = tl.load(tiles + num_rows)
    share = tiles_of_program(num_tiles, tl.num_programs(1))
    tile = program * share
    end = tl.minimum(tile + share, num_tiles)
    if tile >= end:
        return
    if key_scale is not None:
        scale *= tl.load(key_scale + head)
    factor = exponent_scale(scale, soft_cap)
    group = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (group < GROUP)[:, None] & (column < DIM)[None, :]
    heads = head * GROUP + group
    row = row_of_tile(tiles, num_rows, tile)
    while tile < end:
        row_begin = tl.load(tiles + row)
        row_end = tl.load(tiles + row + 1)
        stop = tl.minimum(row_end, end)
        if stop > tile:  # a row that runs no token or several has no tiles
            token = tl.load(query_starts + row)
            seq_len = tl.load(seq_lens + row)
            table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
            oldest = tl.maximum(oldest_seen(seq_len - 1, window, CHUNKED), 0)
            first = tl.maximum((tile - row_begin + oldest // TILE) * TILE, oldest // KEYS * KEYS)
            last = tl.minimum((stop - row_begin + oldest // TILE) * TILE, seq_len)
            mine = query + (head.to(tl.int64) * num_tokens + token) * (GROUP * DIM)
            q = tl.load(mine + group[:, None] * DIM + column[None, :], mask=inside, other=0.0).to(COMPUTE)
            highest = tl.full([ROWS], float("-inf"), tl.float32)
            # by column, and added up once, at the end
            totals = tl.zeros([ROWS, KEYS], tl.float32)
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            # the table is read one turn ahead: the compiler overlaps loads, but not those that wait for another
            position = first + tl.arange(0, KEYS)
            block = tl.load(table + position // BLOCK_SIZE, mask=position < last, other=0)
            for start in range(first, last, KEYS):
                position = start + tl.arange(0, KEYS)
                seen = (position >= oldest) & (position < last)
                place = (block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE) * (HEADS * DIM) + head * DIM
                # what a row may not see may be NaN, and 0 * NaN is not 0: it is never loaded
                wanted = seen[:, None] & (column < DIM)[None, :]
                k = tl.load(keys + place[:, None] + column[None, :], mask=wanted, other=0.0)
                v = tl.load(values + place[:, None] + column[None, :], mask=wanted, other=0.0)
                scores = tl.dot(q, tl.trans(k.to(COMPUTE)), input_precision="ieee")
                scores = tl.where(seen[None, :], capped(scores, scale, soft_cap) * factor, float("-inf"))
                # there is a position it sees in every turn, so the new highest is never -inf
                new_highest = tl.maximum(highest, tl.max(scores, 1))
                shrink = tl.exp2(highest - new_highest)
                weights = tl.exp2(scores - new_highest[:, None])
                totals = totals * shrink[:, None] + weights
                acc = tl.dot(weights.to(COMPUTE), v.to(COMPUTE), acc * shrink[:, None], input_precision="ieee")
                highest = new_highest
                position += KEYS
                block = tl.load(table + position // BLOCK_SIZE, mask=position < last, other=0)
            total = tl.sum(totals, 1)
            whole = (row_begin == tile) & (row_end == stop)
            if sinks is not None:
                sink = tl.load(sinks + heads, mask=group < GROUP, other=0.0) * LOG2E
                # a row that others share gets its sinks when it is merged
                total += tl.where(whole, tl.exp2(sink - highest), 0.0)
            result = acc / total[:, None]
            if value_scale is not None:
                result *= tl.load(value_scale + head)
            if whole:
                mine = out + (token.to(tl.int64) * HEADS + head) * (GROUP * DIM)
                tl.store(mine + group[:, None] * DIM + column[None, :], result, mask=inside)
            else:
                # of each program, the row it begins and the row it goes on with: two at most
                slot = (program * 2 + (row_begin >= program * share)) * (HEADS * GROUP) + heads
                tl.store(partial + slot[:, None] * DIM + column[None, :], result, mask=inside)
                tl.store(partial_lse + slot, highest + tl.log2(total), mask=group < GROUP)
            tile = stop
        row += 1


def decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    schedule: TileSchedule,
    rule: AttentionRule,
    sinks: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
    out: torch.Tensor,
    tiles: Tiles | None = None,
) -> None:
    """Attention of the rows of one token, into their rows of out [T, H * D]; the others stay as they are.

    `tiles` are those measured best where None. The remaining arguments are those of `paged_attention`.
    """
    num_kv_heads, num_tokens, group, head_dim = query.shape
    if tiles is None:
        tiles = _tiles(head_dim, query.dtype, keys.dtype)
    num_programs = max(1, tiles["programs"] * chip_of(query.device).processors // num_kv_heads)
    num_heads = num_kv_heads * group
    partial = torch.empty((num_programs, 2, num_heads, head_dim), dtype=torch.float32, device=query.device)
    partial_lse = torch.empty((num_programs, 2, num_heads), dtype=torch.float32, device=query.device)
    decode_kernel[(num_kv_heads, num_programs)](
        query,
        keys,
        values,
        out,
        partial,
        partial_lse,
        batch.block_tables,
        batch.slots,
        batch.seq_lens,
        batch.query_starts,
        schedule.decode_tiles,
        sinks,
        key_scale,
        value_scale,
        batch.seq_lens.shape[0],
        num_tokens,
        batch.block_tables.stride(0),
        size_of(rule.window),
        rule.scale,
        rule.soft_cap,
        HEADS=num_kv_heads,
        BLOCK_SIZE=keys.shape[1],
        CHUNKED=isinstance(rule.window, Chunk),
        **decode_constants(group, head_dim, query.dtype, keys.dtype, tiles),
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
    )
    merge_splits(partial, partial_lse, batch, schedule, sinks, out)


@functools.cache
def _tiles(head_dim: int, query_type: torch.dtype, cache_type: torch.dtype) -> Tiles:
    return tile(
        "decode", decode_shape_key(head_dim, query_type, cache_type), decode_tiles(head_dim, query_type, cache_type)
    )


def decode_constants(
    group: int, head_dim: int, query_type: torch.dtype, cache_type: torch.dtype, tiles: Tiles
) -> dict[str, Any]:
    """Compile-time arguments of the kernel that follow from types, sizes and tiles."""
    compute = query_type
    if cache_type == torch.float8_e4m3fn and query_type == torch.bfloat16:
        # holds 8-bit floats exactly, converted two at a time; queries stay far below its largest, 65504
        compute = torch.float16
    return {
        "GROUP": group,
        "DIM": head_dim,
        "TILE": KEYS_PER_TILE,
        "KEYS": tiles["keys"],
        "ROWS": max(16, triton.next_power_of_2(group)),
        "COLUMNS": max(16, triton.next_power_of_2(head_dim)),
        "COMPUTE": TYPES[compute],
    }
