"""The choice of tokens: greedy rows by the maximum, the others distributed as the softmax."""

import math

import numpy as np
import pytest
import torch

from quire.kernels.sampling.sample import sample, sample_reference
from quire.kernels.sampling.top_k_top_p import top_k_top_p

NOTHING_CUT = -math.inf


def logits_of(num_rows, vocab=1500, seed=0, spread=3.0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def draws(logits, num_draws, temperature=1.0, floor=NOTHING_CUT, seed=11, output=0):
    """`num_draws` tokens of one row [1, V]."""
    rows = logits.expand(num_draws, -1).contiguous()
    ones = torch.ones(num_draws)
    return sample(
        rows, ones * floor, ones * temperature, ones.long() * seed, torch.arange(num_draws), ones.long() * output
    )


def chi_square(counts, probabilities):
    """(statistic, degrees of freedom), of cells expected at least five times; the rest is one cell."""
    expected = probabilities * counts.sum()
    big = expected >= 5
    pairs = [(counts[big], expected[big])]
    if expected[~big].sum() >= 5:
        pairs.append((counts[~big].sum(keepdims=True), expected[~big].sum(keepdims=True)))
    observed, wanted = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return ((observed - wanted) ** 2 / wanted).sum(), len(observed) - 1


@pytest.mark.parametrize("vocab", [5, 128, 1000], ids=["within a tile", "one tile", "many tiles"])
def test_drawn_tokens_have_the_softmax_distribution(vocab):
    logits = logits_of(1, vocab=vocab, spread=1.5, seed=vocab)
    counts = np.bincount(draws(logits, 20_000, temperature=0.8).numpy(), minlength=vocab)
    statistic, freedom = chi_square(counts, (logits.double() / 0.8).softmax(-1)[0].numpy())
    # 4.5 standard deviations of the chi-square distribution; the seed is fixed, so this cannot flicker
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom)


def test_exactly_the_tokens_not_below_the_floor_are_drawn():
    logits = logits_of(1, spread=0.3)
    one = torch.ones(1)
    floor = top_k_top_p(logits, one, torch.tensor([7]), one, one * 0).item()
    assert set(draws(logits, 3000, floor=floor).tolist()) == set((logits[0] >= floor).nonzero().squeeze(1).tolist())


def test_a_choice_hangs_on_its_own_row_alone():
    logits = logits_of(7, spread=2.0)
    columns = (
        torch.full((7,), NOTHING_CUT),
        torch.tensor([0.7, 0, 1, 2, 0, 0.1, 1]),
        torch.arange(7) * 17 - 40,
        torch.arange(7) * 5,
        torch.arange(7) % 3,
    )
    together = sample(logits, *columns)
    assert torch.equal(sample_reference(logits, *columns), together)
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    assert torch.equal(sample(logits[order], *(column[order] for column in columns)), together[order])
    for row in range(7):
        one = slice(row, row + 1)
        assert torch.equal(sample(logits[one], *(column[one] for column in columns)), together[one])


@pytest.mark.parametrize("form", [sample, sample_reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_temperature_zero_takes_the_lowest_id_among_the_likeliest(form, dtype):
    logits = logits_of(2, vocab=300).to(dtype)
    logits[1, [257, 31, 200]] = 30.0
    zero = torch.zeros(2)
    tokens = form(logits, zero - math.inf, zero, zero.long(), zero.long(), zero.long())
    assert tokens.tolist() == [logits[0].float().argmax(), 31]


def test_the_smallest_temperature_draws_the_likeliest():
    logits = logits_of(1)
    assert set(draws(logits, 50, temperature=1e-30).tolist()) == {int(logits.argmax())}


def test_outputs_of_one_request_draw_different_tokens():
    logits = logits_of(1, spread=0.1)
    assert (draws(logits, 200, output=0) != draws(logits, 200, output=1)).float().mean() > 0.95


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unsound_rows_yield_ids_within_the_vocabulary(temperature):
    for value in (math.nan, math.inf, -math.inf):
        for floor in (NOTHING_CUT, math.nan):
            tokens = draws(torch.full((1, 130), value), 5, temperature=temperature, floor=floor)
            assert all(0 <= token < 130 for token in tokens.tolist())


def test_no_rows_draw_no_tokens():
    none, nothing = torch.empty(0), torch.empty(0, dtype=torch.int64)
    assert sample(torch.empty(0, 9), none, none, nothing, nothing, nothing).shape == (0,)


def test_a_wrong_argument_is_refused_by_name():
    logits, floats, whole = logits_of(2), torch.ones(2), torch.ones(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^floor"):
        sample(logits, floats.double(), floats, whole, whole, whole)
    with pytest.raises(ValueError, match=r"^positions"):
        sample(logits, floats, floats, whole, whole.int(), whole)
    with pytest.raises(ValueError, match=r"^logits: expected a vocabulary"):
        sample(logits[:, :0], floats, floats, whole, whole, whole)
