"""Truncation against a plain reading of its definition, row by row."""

import math

import numpy as np
import pytest
import torch

from quire.kernels.sampling.top_k_top_p import top_k_top_p, top_k_top_p_reference

VOCAB = 1500


def logits_of(num_rows, vocab=VOCAB, seed=0, spread=3.0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def columns(settings):
    """temperature, top_k, top_p, min_p of rows given as (top_k, top_p, min_p[, temperature])."""
    k, p, m, t = zip(*((*setting, 1.0)[:4] for setting in settings), strict=True)
    return torch.tensor(t), torch.tensor(k), torch.tensor(p).float(), torch.tensor(m).float()


def kept_by_definition(row, top_k, top_p, min_p, temperature):
    """The set of kept ids, in float64, by sorting."""
    p = np.exp((row - row.max()).double().numpy() / temperature)
    alive = p >= min_p
    if 0 < top_k < len(p):
        alive &= p >= np.sort(np.where(alive, p, 0))[-top_k]
    if top_p < 1.0:
        mass = p * alive
        alive &= np.array([mass[mass > x].sum() for x in p]) < top_p * mass.sum()
    return set(np.flatnonzero(alive).tolist())


SETTINGS = [
    (0, 0.9, 0.0),
    (0, 0.05, 0.0),
    (1, 1.0, 0.0),
    (40, 1.0, 0.0),
    (1400, 1.0, 0.0),
    (5000, 1.0, 0.0),
    (0, 1.0, 0.02),
    (0, 1.0, 1.0),
    (1200, 0.97, 0.0),
    (30, 0.8, 0.1),
    (0, 0.99, 0.001),
    (1300, 0.999, 1e-9),
    (0, 1.0, 0.0),
    (0, 0.9, 0.0, 0.3),
    (0, 0.9, 0.0, 2.0),
    (50, 0.8, 0.0, 1.7),
    (0, 1.0, 0.05, 0.5),
]


@pytest.mark.parametrize("form", [top_k_top_p, top_k_top_p_reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spread", [0.05, 1.0, 6.0], ids=["flat", "usual", "peaked"])
def test_the_floor_is_the_least_logit_of_exactly_the_defined_set(form, dtype, spread):
    logits = logits_of(len(SETTINGS), spread=spread).to(dtype)
    parameters = columns(SETTINGS)
    floor = form(logits, *parameters)
    for row, (temperature, k, p, m) in enumerate(zip(*(column.tolist() for column in parameters), strict=True)):
        kept = set((logits[row].float() >= floor[row]).nonzero().squeeze(1).tolist())
        assert kept == kept_by_definition(logits[row].float(), k, p, m, temperature), f"setting {SETTINGS[row]}"
        assert floor[row] == -math.inf or floor[row] in logits[row].float()


def test_nothing_is_cut_of_greedy_rows_and_of_those_without_limits():
    floor = top_k_top_p(
        logits_of(4), *columns([(3, 0.5, 0.5, 0.0), (0, 1.0, 0.0), (VOCAB, 1.0, 0.0), (2**62, 1.0, 0.0)])
    )
    assert floor.tolist() == [-math.inf] * 4


def test_equal_logits_share_their_fate():
    logits = torch.tensor([[0.0, -1.0, -1.0, -1.0, -9.0]])
    assert top_k_top_p(logits, *columns([(2, 1.0, 0.0)])).tolist() == [-1.0]
    assert top_k_top_p(logits, *columns([(0, 0.6, 0.0)])).tolist() == [-1.0]


def test_forbidden_tokens_do_not_count():
    logits = torch.full((2, 200), -math.inf)
    logits[:, [7, 150]] = torch.tensor([1.0, 0.0])
    assert top_k_top_p(logits, *columns([(50, 0.5, 0.0), (0, 0.9, 0.0)])).tolist() == [1.0, 0.0]


def test_truncation_of_a_row_does_not_hang_on_its_neighbours():
    logits = logits_of(6, spread=0.5)
    parameters = columns([(0, 0.7, 0), (3, 1, 0), (0, 1, 0), (1400, 0.9, 0), (0, 0.999, 0), (9, 0.3, 0)])
    together = top_k_top_p(logits, *parameters)
    for row in range(6):
        one = slice(row, row + 1)
        assert torch.equal(top_k_top_p(logits[one], *(column[one] for column in parameters)), together[one])


def test_the_smallest_temperature_keeps_the_likeliest_alone():
    logits = logits_of(1)
    assert top_k_top_p(logits, *columns([(0, 0.9, 0.0, 1e-30)])).tolist() == logits.amax(dim=1).tolist()


def test_a_wrong_argument_is_refused_by_name():
    logits, (temperature, k, p, m) = logits_of(2), columns([(3, 1.0, 0.0), (0, 0.5, 0.0)])
    for name, arguments in {
        "logits": (logits.double(), temperature, k, p, m),
        "logits: each row": (logits.T, temperature, k, p, m),
        "top_k": (logits, temperature, k.int(), p, m),
        "top_p": (logits, temperature, k, p[:1], m),
        "min_p": (logits, temperature, k, p, torch.zeros(2, 2)[:, 0]),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name}"):
            top_k_top_p(*arguments)
