"""The reference of the tile schedule against plain counting, and what it refuses."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule
from quire.kernels.attention.window import Chunk


def step(lengths):
    """(seq_lens, query_starts, an empty list) of rows [(query, seq), ...]."""
    seq_lens = torch.tensor([seq_len for _, seq_len in lengths], dtype=torch.int32)
    query_starts = torch.tensor([0, *(query_len for query_len, _ in lengths)]).cumsum(0).int()
    return seq_lens, query_starts, TileSchedule(*torch.full((2, len(lengths) + 1), -1, dtype=torch.int32))


row_lengths = st.integers(0, 90).flatmap(
    lambda seq: st.tuples(st.one_of(st.just(min(1, seq)), st.integers(0, seq)), st.just(seq))
)


@settings(max_examples=150)
@given(
    lengths=st.lists(row_lengths, max_size=8),
    window=st.sampled_from([None, 1, 2, 15, 16, 17, 1000, Chunk(1), Chunk(20), Chunk(1000)]),
    tokens_per_tile=st.sampled_from([1, 4, 32]),
    keys_per_tile=st.sampled_from([1, 16, 64]),
)
def test_every_tile_that_holds_something_to_do_is_counted_once(lengths, window, tokens_per_tile, keys_per_tile):
    seq_lens, query_starts, out = step(lengths)
    fill_tile_schedule(seq_lens, query_starts, window, tokens_per_tile, keys_per_tile, out)
    prefill, decode = [0], [0]
    for query_len, seq_len in lengths:
        if isinstance(window, Chunk):
            oldest = (seq_len - 1) // window.size * window.size
        else:
            oldest = 0 if window is None else seq_len - window
        seen = range(max(0, oldest), seq_len)
        keys = {position // keys_per_tile for position in seen}
        queries = {token // tokens_per_tile for token in range(query_len)}
        prefill.append(prefill[-1] + (len(queries) if query_len > 1 else 0))
        decode.append(decode[-1] + (len(keys) if query_len == 1 else 0))
    assert out.prefill_tiles.tolist() == prefill
    assert out.decode_tiles.tolist() == decode


def test_a_step_without_rows_has_no_tiles():
    seq_lens, query_starts, out = step([])
    fill_tile_schedule(seq_lens, query_starts, None, 32, 64, out)
    assert (out.prefill_tiles.tolist(), out.decode_tiles.tolist()) == ([0], [0])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seq_lens": torch.zeros(2, dtype=torch.int64)}, "seq_lens"),
        ({"query_starts": torch.zeros(2, dtype=torch.int32)}, "query_starts"),
        ({"query_starts": torch.zeros(6, dtype=torch.int32)[::2]}, "query_starts"),
        ({"prefill_tiles": torch.zeros(2, dtype=torch.int32)}, "out.prefill_tiles"),
        ({"decode_tiles": torch.zeros(3)}, "out.decode_tiles"),
        ({"window": 0}, "window"),
        ({"window": Chunk(0)}, "window"),
        ({"tokens_per_tile": 0}, "tokens_per_tile"),
        ({"keys_per_tile": 0}, "keys_per_tile"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(change, name):
    seq_lens, query_starts, out = step([(1, 5), (3, 3)])
    given = {"seq_lens": seq_lens, "query_starts": query_starts, "window": None}
    given |= {"tokens_per_tile": 4, "keys_per_tile": 16, "out": out}
    lists = {key: value for key, value in change.items() if key.endswith("_tiles")}
    given |= {key: value for key, value in change.items() if key not in lists}
    given["out"] = dataclasses.replace(out, **lists)
    with pytest.raises(ValueError, match=f"^{name}: "):
        fill_tile_schedule(*given.values())
