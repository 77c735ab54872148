"""Each stage of sampling against a plain reading of its definition, row by row."""

import math

import numpy as np
import pytest
import torch

from quire.kernels.sample import draw, finite_rows, penalize, scale, truncate, truncate_reference

VOCAB = 1500


def logits_of(num_rows, vocab=VOCAB, seed=0, spread=3.0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def kept_by_definition(row, top_k, top_p, min_p):
    """The set of kept ids, in float64, by sorting."""
    p = np.exp(row.double().numpy())
    alive = p >= min_p * p.max()
    if 0 < top_k < len(p):
        alive &= p >= np.sort(np.where(alive, p, 0))[-top_k]
    if top_p < 1.0:
        mass = p * alive
        alive &= np.array([mass[mass > x].sum() for x in p]) < top_p * mass.sum()
    return set(np.flatnonzero(alive).tolist())


@pytest.mark.parametrize("cut", [truncate, truncate_reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("spread", [0.05, 1.0, 6.0], ids=["flat", "usual", "peaked"])
def test_truncation_keeps_exactly_the_defined_set(cut, spread):
    settings = [
        (0, 0.9, 0.0), (0, 0.05, 0.0), (1, 1.0, 0.0), (40, 1.0, 0.0), (1400, 1.0, 0.0), (5000, 1.0, 0.0),
        (0, 1.0, 0.02), (0, 1.0, 1.0), (1200, 0.97, 0.0), (30, 0.8, 0.1), (0, 0.99, 0.001), (1300, 0.999, 1e-9),
        (0, 1.0, 0.0),
    ]  # fmt: skip
    scaled = scale(logits_of(len(settings), spread=spread), torch.ones(len(settings)))
    k, p, m = (torch.tensor(column) for column in zip(*settings, strict=True))
    result = cut(scaled, k, p.float(), m.float())
    for row, setting in enumerate(settings):
        kept = set(torch.isfinite(result[row]).nonzero().squeeze(1).tolist())
        assert kept == kept_by_definition(scaled[row], *setting), f"setting {setting}"
        ids = sorted(kept)
        assert torch.equal(result[row, ids], scaled[row, ids]), "a kept logit was changed"


def test_equal_logits_share_their_fate():
    scaled = torch.tensor([[0.0, -1.0, -1.0, -1.0, -9.0]])
    kept = truncate(scaled, torch.tensor([2]), torch.ones(1), torch.zeros(1))
    assert torch.isfinite(kept).tolist() == [[True, True, True, True, False]]


def test_truncation_of_a_row_does_not_hang_on_its_neighbours():
    scaled = scale(logits_of(6, spread=0.5), torch.ones(6))
    k, p, m = torch.tensor([0, 3, 0, 1400, 0, 9]), torch.tensor([0.7, 1, 1, 0.9, 0.999, 0.3]), torch.zeros(6)
    together = truncate(scaled, k, p, m)
    for row in range(6):
        one = slice(row, row + 1)
        assert torch.equal(truncate(scaled[one], k[one], p[one], m[one]), together[one])


def test_penalties_follow_their_formulas():
    logits = logits_of(3, vocab=12, seed=3)
    tokens = torch.tensor([[1, 2, 2, 5, 5, 5, 9], [3, 3, 3, 0, 0, 0, 0], [4, 5, 6, 7, 8, 9, 9]], dtype=torch.int32)
    known, prompt = torch.tensor([7, 3, 7]), torch.tensor([3, 1, 7])
    repetition = torch.tensor([1.5, 0.5, 2.0])
    presence, frequency = torch.tensor([0.3, -1, 2]), torch.tensor([0.2, 1, -2])
    result = penalize(logits.clone(), tokens, known, prompt, repetition, presence, frequency)
    for row in range(3):
        everything = tokens[row, : known[row]].tolist()
        output = everything[prompt[row] :]
        for token in range(12):
            expected = logits[row, token].item()
            if token in everything:
                r = repetition[row].item()
                expected = expected / r if expected > 0 else expected * r
            expected -= frequency[row].item() * output.count(token) + presence[row].item() * (token in output)
            assert result[row, token].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_smallest_temperature_is_still_finite():
    scaled = scale(logits_of(1), torch.tensor([1e-30]))
    assert not scaled.isnan().any()
    assert scaled.max() == 0.0


def test_a_row_with_nan_or_infinity_is_found():
    logits = logits_of(5)
    logits[1, 7], logits[2, 0], logits[3, VOCAB - 1] = math.nan, math.inf, -math.inf
    assert finite_rows(logits).tolist() == [True, False, False, False, True]


def draws(scaled, num_draws, seed=11, output=0):
    rows = scaled.expand(num_draws, -1).contiguous()
    ones = torch.ones(num_draws, dtype=torch.int64)
    return draw(rows, ones * seed, torch.arange(num_draws), ones * output)


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
    scaled = scale(logits_of(1, vocab=vocab, spread=1.5, seed=vocab), torch.tensor([0.8]))
    counts = np.bincount(draws(scaled, 20_000).numpy(), minlength=vocab)
    statistic, freedom = chi_square(counts, scaled.double().softmax(-1)[0].numpy())
    # 4.5 standard deviations of the chi-square distribution; the seed is fixed, so this cannot flicker
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom)


def test_a_cut_token_is_never_drawn():
    scaled = scale(logits_of(1, spread=0.3), torch.ones(1))
    kept = truncate(scaled, torch.tensor([7]), torch.ones(1), torch.zeros(1))
    assert set(draws(kept, 3000).tolist()) == set(torch.isfinite(kept[0]).nonzero().squeeze(1).tolist())


def test_a_draw_hangs_on_its_own_row_alone():
    scaled = scale(logits_of(7, spread=2.0), torch.ones(7))
    seeds, positions, outputs = torch.arange(7) * 17 - 40, torch.arange(7) * 5, torch.arange(7) % 3
    together = draw(scaled, seeds, positions, outputs)
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    assert torch.equal(draw(scaled[order], seeds[order], positions[order], outputs[order]), together[order])
    for row in range(7):
        one = slice(row, row + 1)
        assert torch.equal(draw(scaled[one], seeds[one], positions[one], outputs[one]), together[one])


def test_outputs_of_one_request_draw_different_tokens():
    scaled = scale(logits_of(1, spread=0.1), torch.ones(1))
    assert (draws(scaled, 200, output=0) != draws(scaled, 200, output=1)).float().mean() > 0.95


def test_nan_rows_yield_ids_within_the_vocabulary():
    scaled = torch.full((2, 130), math.nan)
    one = torch.ones(2, dtype=torch.int64)
    cut = truncate(scaled, one * 3, torch.full((2,), 0.5), torch.full((2,), 0.1))
    for values in (scaled, cut):
        assert all(0 <= token < 130 for token in draw(values, one, one, one).tolist())
