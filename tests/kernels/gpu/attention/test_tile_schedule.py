"""The tile schedule that one program sums up, against its reference, in the interpreter."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule_reference
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu.attention.tile_schedule import fill_tile_schedule, row_of_tile

row_lengths = st.integers(0, 300).flatmap(
    lambda seq: st.tuples(st.one_of(st.just(min(1, seq)), st.integers(0, seq)), st.just(seq))
)


def check(lengths, window, tokens_per_tile, keys_per_tile):
    """Fill by both; return what both agree on."""
    seq_lens = torch.tensor([seq_len for _, seq_len in lengths], dtype=torch.int32)
    query_starts = torch.tensor([0, *(query_len for query_len, _ in lengths)]).cumsum(0).int()
    lists = []
    for fill in (fill_tile_schedule, fill_tile_schedule_reference):
        lists.append(TileSchedule(*torch.full((2, len(lengths) + 1), -1, dtype=torch.int32)))
        fill(seq_lens, query_starts, window, tokens_per_tile, keys_per_tile, lists[-1])
    assert lists[0].prefill_tiles.tolist() == lists[1].prefill_tiles.tolist()
    assert lists[0].decode_tiles.tolist() == lists[1].decode_tiles.tolist()
    return lists[0]


@settings(max_examples=60)
@given(
    lengths=st.lists(row_lengths, max_size=8),
    window=st.sampled_from([None, 1, 63, 64, 65, 2**31 - 1, 2**40, Chunk(1), Chunk(70), Chunk(2**40)]),
    tokens_per_tile=st.sampled_from([1, 18, 128]),
    keys_per_tile=st.sampled_from([16, 64]),
)
def test_the_list_is_the_reference_s(lengths, window, tokens_per_tile, keys_per_tile):
    check(lengths, window, tokens_per_tile, keys_per_tile)


@pytest.mark.parametrize("num_rows", [511, 512, 513, 1100])
def test_sums_run_on_from_chunk_to_chunk_of_rows(num_rows):
    check([((7 * row) % 3, 3 + (row * row) % 200) for row in range(num_rows)], 70, 2, 64)


def test_the_list_of_a_step_without_rows_is_a_zero():
    check([], None, 32, 64)


def test_the_row_of_a_tile_is_the_one_that_holds_it_and_empty_rows_hold_none():
    @triton.jit
    def rows_of_tiles(tiles, rows, num_rows):
        tile = tl.program_id(0)
        tl.store(rows + tile, row_of_tile(tiles, num_rows, tile))

    # more rows than one chunk, and most without a tile
    counts = torch.zeros(700, dtype=torch.int64)
    counts[[2, 3, 510, 511, 512, 698]] = torch.tensor([3, 1, 2, 1, 4, 2])
    tiles = torch.tensor([0, *counts.tolist()]).cumsum(0).int()[:701]
    rows = torch.full((int(tiles[-1]),), -1, dtype=torch.int32)
    rows_of_tiles[(len(rows),)](tiles, rows, 700)
    assert rows.tolist() == torch.arange(700).repeat_interleave(counts).tolist()
