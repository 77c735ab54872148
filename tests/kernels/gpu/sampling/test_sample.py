"""The choosing kernels against their reference, in the interpreter."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.sampling.sample import sample
from quire.kernels.gpu.sampling.tiles import CHUNK
from quire.kernels.sampling.sample import sample_reference
from quire.kernels.sampling.top_k_top_p import top_k_top_p_reference

pytestmark = [
    pytest.mark.usefixtures("poisoned_results"),
    # the logarithm of a tile without mass is -inf, and meant to be
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log", "ignore:invalid value encountered"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def columns_of(num_rows, seed, temperatures=(0.0, 0.5, 1.0, 2.0, 1e-30)):
    """floor (nothing cut), temperature, seeds, positions, output_index"""
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(len(temperatures), (num_rows,), generator=generator)
    seeds = torch.randint(-(2**62), 2**62, (num_rows,), generator=generator)
    positions, outputs = torch.randint(2**20, (2, num_rows), generator=generator)
    return torch.full((num_rows,), -math.inf), torch.tensor(temperatures)[choice], seeds, positions, outputs


def logits_of(num_rows, vocab, seed, dtype=torch.float32):
    return (3 * torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(max_examples=40)
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 7),
    st.one_of(st.integers(1, 300), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 130])),
    st.integers(0, 999),
)
def test_tokens_equal_the_reference(dtype, num_rows, vocab, seed):
    logits, columns = logits_of(num_rows, vocab, seed, dtype), columns_of(num_rows, seed)
    assert torch.equal(sample(logits, *columns), sample_reference(logits, *columns))


@pytest.mark.parametrize("vocab", [90, CHUNK + 200])
def test_tokens_below_the_floor_are_never_drawn(vocab):
    logits, (_, _, *columns) = logits_of(20, vocab, 5), columns_of(20, 5)
    ones = torch.ones(20)
    floor = top_k_top_p_reference(logits, ones, 9 * ones.long(), ones, 0 * ones)
    tokens = sample(logits, floor, ones, *columns)
    assert (logits.gather(1, tokens[:, None]).squeeze(1) >= floor).all()
    assert torch.equal(tokens, sample_reference(logits, floor, ones, *columns))


def test_the_lowest_id_among_the_likeliest_is_taken():
    logits = logits_of(3, 2 * CHUNK + 5, 1)
    logits[0, [2 * CHUNK, CHUNK + 7, CHUNK + 9]] = 40.0
    logits[1, [CHUNK, CHUNK - 1]] = 40.0
    logits[2] = 1.0
    tokens = sample(logits, *columns_of(3, 0, temperatures=(0.0,)))
    assert tokens.tolist() == [CHUNK + 7, CHUNK - 1, 0]


@pytest.mark.parametrize("token", [0, 127, 128, CHUNK - 1, CHUNK, CHUNK + 40])
def test_the_only_token_of_a_row_is_chosen(token):
    logits = torch.full((4, CHUNK + 41), -math.inf)
    logits[:, token] = -7.5
    columns = columns_of(4, 3, temperatures=(0.0, 1.0))
    assert set(columns[1].tolist()) == {0.0, 1.0}
    assert sample(logits, *columns).tolist() == [token] * 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("everywhere", [True, False])
def test_unsound_rows_yield_ids_within_the_vocabulary_and_leave_the_others_alone(value, everywhere):
    logits, columns = logits_of(6, CHUNK + 130, 2), columns_of(6, 4)
    columns[1][1], columns[1][4] = 0.0, 1.0
    expected = sample(logits, *columns)
    for row in (1, 4):
        logits[row, slice(None) if everywhere else slice(17, 30)] = value
        columns[0][row] = math.nan
    tokens = sample(logits, *columns)
    sound = torch.tensor([0, 2, 3, 5])
    assert torch.equal(tokens[sound], expected[sound])
    assert ((tokens >= 0) & (tokens < CHUNK + 130)).all()


def test_rows_may_lie_apart():
    wide, columns = logits_of(5, 400, 9), columns_of(5, 9)
    assert torch.equal(sample(wide[:, :333], *columns), sample(wide[:, :333].contiguous(), *columns))
