"""The kernel that prepares a step against its reference, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.prepare_inputs import CHUNK, TILE, prepare_inputs
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs_reference


def poisoned(num_tokens, num_rows, num_axes):
    buffer = torch.full((num_axes, num_tokens + 5), -77)  # an axis is longer than the step
    longs = torch.full((num_tokens,), -77), buffer[:, :num_tokens], torch.full((num_tokens,), -77)
    return StepInputs(*longs, *(torch.full((num_rows + extra,), -77).int() for extra in (1, 0, 0)))


def check(slots, computed, counts, padding, block_size, capacity=None, num_axes=1, shifted=False):
    """Both forms fill poisoned buffers from the same tables, and agree."""
    num_rows, num_tokens = len(slots), sum(counts) + padding
    capacity = capacity or max([1, *(c + n for c, n in zip(computed, counts, strict=True))])
    generator = torch.Generator().manual_seed(num_tokens)
    num_slots = max([0, *slots]) + 1
    tokens = torch.randint(0, 150_000, (num_slots, capacity), generator=generator).int()
    tables = torch.randint(0, 2**28, (num_slots, -(-capacity // block_size)), generator=generator).int()
    known = torch.randint(capacity, 2 * capacity, (num_slots,), generator=generator)
    left = [int(known[slot]) - count for slot, count in zip(slots, computed, strict=True)]
    shifts = torch.randint(-50, 1, (num_slots,), generator=generator) if shifted else None
    wide = torch.full((3, num_rows + 3), 9, dtype=torch.int32)
    wide[:, :num_rows] = torch.tensor([slots, left, counts]).view(3, num_rows)
    actual, expected = (poisoned(num_tokens, num_rows, num_axes) for _ in range(2))
    prepare_inputs(tokens, known, tables, wide[:, :num_rows], block_size, actual, shifts)
    prepare_inputs_reference(tokens, known, tables, wide[:, :num_rows], block_size, expected, shifts)
    for name, column in actual._asdict().items():
        assert torch.equal(column, getattr(expected, name)), name


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6)), max_size=6),
    st.permutations(range(8)),
    st.integers(0, 5),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_any_mix_of_rows_equals_the_reference(lengths, slots, padding, block_size, num_axes, shifted):
    computed, counts = [c for c, _ in lengths], [n for _, n in lengths]
    check(slots[: len(lengths)], computed, counts, padding, block_size, 20, num_axes, shifted)


@pytest.mark.parametrize("count", [TILE - 1, TILE, TILE + 1, 2 * TILE + 3])
def test_long_rows_and_long_padding_are_shared_among_programs(count):
    check([2, 0, 1], [0, 5, 17], [1, count, 2], TILE + 1, 16)


def test_rows_behind_the_first_chunk_of_counts_start_where_the_others_end():
    num_rows = CHUNK.value + 2
    counts = [0] * num_rows
    counts[0] = counts[-2] = 1
    counts[CHUNK.value // 2], counts[-1] = 2, 3
    check([row % 7 for row in range(num_rows)], [3] * num_rows, counts, 1, 4)
