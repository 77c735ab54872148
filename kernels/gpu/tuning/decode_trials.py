"""Trials of `quire bench tune` for the decode body."""

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.attention.tile_schedule import KEYS_PER_TILE, TileSchedule
from quire.kernels.gpu.attention.decode import decode
from quire.kernels.gpu.attention.tile_schedule import fill_tile_schedule
from quire.kernels.gpu.attention.tiles import decode_shape_key, decode_tiles
from quire.kernels.gpu.tile_table import Tiles
from quire.kernels.gpu.tuning.trial import Trial

NUM_KV_HEADS, GROUP, BLOCK_SIZE = 8, 4, 16
LENGTHS = (32768, *[2048] * 31)
"""One long sequence among short ones: what the body exists for."""


def trials() -> Iterator[Trial]:
    """Head sizes people serve in bfloat16, with caches of 16 and of 8 bits."""
    for head_dim in (64, 128, 256):
        for cache_type in (torch.bfloat16, torch.float8_e4m3fn):
            default = decode_tiles(head_dim, torch.bfloat16, cache_type)
            others = (
                {**default, "keys": keys, "programs": programs, "num_stages": stages}
                for keys in (32, 64, 128)
                for stages in (3, 4)
                for programs in (2, 3)
            )
            yield Trial(
                "decode",
                decode_shape_key(head_dim, torch.bfloat16, cache_type),
                (default, *(tiles for tiles in others if tiles != default)),
                2 * NUM_KV_HEADS * head_dim * cache_type.itemsize * sum(LENGTHS),
                functools.partial(prepare, head_dim, cache_type, LENGTHS),
            )


def prepare(
    head_dim: int, cache_type: torch.dtype, lengths: Sequence[int], device: torch.device
) -> Callable[[Tiles], torch.Tensor]:
    """A launch with given tiles over rows of one token of sequences of these lengths, their blocks strewn about."""
    generator = torch.Generator(device).manual_seed(0)
    num_rows = len(lengths)
    needed = [-(-length // BLOCK_SIZE) for length in lengths]
    blocks = torch.randperm(sum(needed), generator=generator, device=device).int().split(needed)
    query = torch.randn((NUM_KV_HEADS, num_rows, GROUP, head_dim), generator=generator, device=device).bfloat16()
    cache = (sum(needed), BLOCK_SIZE, NUM_KV_HEADS, head_dim)
    keys, values = (
        torch.randn(cache, generator=generator, device=device, dtype=torch.bfloat16).to(cache_type) for _ in range(2)
    )
    batch = PagedBatch(
        block_tables=torch.nn.utils.rnn.pad_sequence(blocks, batch_first=True),
        slots=torch.arange(num_rows, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
        num_decodes=num_rows,
        query_lens_host=(1,) * num_rows,
        seq_lens_host=tuple(lengths),
        schedules={},
    )
    schedule = TileSchedule(torch.empty_like(batch.query_starts), torch.empty_like(batch.query_starts))
    fill_tile_schedule(batch.seq_lens, batch.query_starts, None, 1, KEYS_PER_TILE, schedule)
    scale = torch.ones(NUM_KV_HEADS, device=device) if cache_type.itemsize == 1 else None
    out = torch.empty((num_rows, NUM_KV_HEADS * GROUP * head_dim), dtype=query.dtype, device=device)

    def launch(tiles: Tiles) -> torch.Tensor:
        decode(query, keys, values, batch, schedule, AttentionRule(head_dim**-0.5), None, scale, scale, out, tiles)
        return out

    return launch
