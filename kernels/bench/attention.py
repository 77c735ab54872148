"""Attention over a paged cache whose blocks lie scattered, beside torch's over keys and values laid out in one piece.

Shape legend: K key-value heads, G query heads of each, H = K * G, D head dim, L positions.
"""

import itertools

import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.kernels.attention.attention import AttentionRule, PagedBatch, paged_attention
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, tile_shape
from quire.kernels.attention.window import Window
from quire.kernels.bench import cost
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Attend, Layer


def case(layer: Layer, attend: Attend) -> Case:
    """`paged_attention` of one batch in one layer."""
    cache_dtype = torch.float8_e4m3fn if attend.fp8 else layer.dtype
    bound = cost.attention(
        [query for count, query, _ in attend.rows for _ in range(count)],
        [length for count, _, length in attend.rows for _ in range(count)],
        layer.heads,
        layer.kv_heads,
        layer.head_dim,
        layer.dtype.itemsize,
        cache_dtype.itemsize,
    )
    shape = f"{attend.name}, {layer.heads}/{layer.kv_heads} heads of {layer.head_dim}"
    return Case("paged_attention", shape, bound, lambda device: _make(layer, attend, cache_dtype, device))


def _make(layer: Layer, attend: Attend, cache_dtype: torch.dtype, device: torch.device) -> Pair:
    groups, size = layer.heads // layer.kv_heads, attend.block_size
    query_lens = tuple(query for count, query, _ in attend.rows for _ in range(count))
    seq_lens = tuple(length for count, _, length in attend.rows for _ in range(count))
    needed = [-(-length // size) for length in seq_lens]
    blocks = torch.randperm(sum(needed), device=device).int()
    tables = torch.zeros((len(seq_lens), max(needed)), dtype=torch.int32, device=device)
    for table, count, end in zip(tables, needed, itertools.accumulate(needed), strict=True):
        table[:count] = blocks[end - count : end]
    shape = (sum(needed), size, layer.kv_heads, layer.head_dim)
    keys, values = (normal(device, *shape, dtype=layer.dtype).to(cache_dtype) for _ in range(2))
    scale = torch.ones(layer.kv_heads, device=device) if attend.fp8 else None
    query = normal(device, layer.kv_heads, sum(query_lens), groups, layer.head_dim, dtype=layer.dtype)
    batch = _batch(tables, query_lens, seq_lens, groups)
    rule = AttentionRule(layer.head_dim**-0.5)
    whole = []
    start = 0
    for count, query_len, length in attend.rows:
        rows = slice(start, start + count)
        first = sum(query_lens[:start])
        part = query[:, first : first + count * query_len]
        # [K, count * t, G, D] -> [count, H, t, D]
        heads = (
            part.view(layer.kv_heads, count, query_len, groups, layer.head_dim)
            .permute(1, 0, 3, 2, 4)
            .flatten(1, 2)
            .contiguous()
        )
        bias = _causal(query_len, length) if 1 < query_len < length else None
        key, value = (_in_one_piece(cache, tables[rows], length, layer.dtype) for cache in (keys, values))
        whole.append((heads, key, value, bias))
        start += count

    def peer() -> torch.Tensor:
        parts = [
            scaled_dot_product_attention(q, k, v, bias, is_causal=1 < q.shape[2] == k.shape[2], enable_gqa=True)
            .transpose(1, 2)
            .flatten(2)
            for q, k, v, bias in whole
        ]
        return torch.cat([part.flatten(0, 1) for part in parts])

    return Pair(lambda: paged_attention(query, keys, values, batch, rule, None, scale, scale), peer)


def _causal(query_len: int, length: int) -> torch.Tensor:
    """A mask for queries that are the last of a row's positions; torch takes its kernels by the mask's class."""
    from torch.nn.attention.bias import causal_lower_right  # brings torch's compiler, a second of imports

    mask: torch.Tensor = causal_lower_right(query_len, length)
    return mask


def _in_one_piece(cache: torch.Tensor, tables: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, K, L, D] out of the paged cache, for rows of equal length."""
    used = tables[:, : -(-length // cache.shape[1])]
    gathered = cache.view(torch.uint8)[used.flatten().long()].view(cache.dtype).to(dtype)
    rows = gathered.view(used.shape[0], -1, *gathered.shape[2:])
    return rows[:, :length].transpose(1, 2).contiguous()


def _batch(tables: torch.Tensor, query_lens: tuple[int, ...], seq_lens: tuple[int, ...], groups: int) -> PagedBatch:
    device = tables.device
    lengths = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    starts = torch.tensor((0, *query_lens), device=device).cumsum(0).int()
    tiles = tile_shape(device.type, groups)
    schedules: dict[Window | None, TileSchedule] = {}
    if tiles is not None:
        schedules[None] = TileSchedule(torch.empty_like(starts), torch.empty_like(starts))
        fill_tile_schedule(lengths, starts, None, *tiles, schedules[None])
    return PagedBatch(
        block_tables=tables,
        slots=torch.arange(len(seq_lens), dtype=torch.int32, device=device),
        seq_lens=lengths,
        query_starts=starts,
        num_decodes=len(seq_lens) if set(query_lens) == {1} else 0,
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
        schedules=schedules,
    )
