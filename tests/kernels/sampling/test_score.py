"""What is read off rows of logits, each form against the definition."""

import math

import pytest
import torch

from quire.kernels.sampling.score import best, best_reference, finite_rows, score, score_reference


def logits_of(num_rows, vocab, seed=0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def test_a_row_with_nan_or_infinity_is_found():
    logits = logits_of(5, 1500)
    logits[1, 7], logits[2, 0], logits[3, 1499] = math.nan, math.inf, -math.inf
    assert finite_rows(logits).tolist() == [True, False, False, False, True]
    assert finite_rows(logits.bfloat16()).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("form", [score, score_reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_are_log_softmax_and_one_more_than_the_greater_logits(form, dtype):
    logits = logits_of(3, 700).to(dtype)
    token_ids = torch.tensor([[0, 699], [5, 5], [128, 3]])
    logprobs, ranks = form(logits, token_ids)
    expected = logits.double().log_softmax(dim=-1).gather(1, token_ids)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    for row in range(3):
        for column, token in enumerate(token_ids[row].tolist()):
            assert ranks[row, column] == 1 + sum(x > logits[row, token] for x in logits[row])


@pytest.mark.parametrize("form", [score, score_reference], ids=["cpu", "reference"])
def test_equal_logits_have_one_rank_and_unsound_rows_no_finite_logprob(form):
    logits = torch.tensor([[1.0, 1.0, 0.0], [math.nan, 1.0, 0.0], [math.inf, 1.0, 0.0]])
    logprobs, ranks = form(logits, torch.tensor([[0, 1, 2]] * 3))
    assert ranks[0].tolist() == [1, 1, 3]
    assert torch.isfinite(logprobs).all(dim=1).tolist() == [True, False, False]


@pytest.mark.parametrize("form", [best, best_reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_best_is_the_maximum_at_its_lowest_id_and_nan_in_unsound_rows(form, dtype):
    logits = logits_of(5, 300).to(dtype)
    logits[0, [40, 290]] = 50.0
    logits[2, 9], logits[3, 9], logits[4, 9] = math.nan, -math.inf, math.inf
    value, token_ids = form(logits)
    assert value.dtype == torch.float32
    assert value[0] == 50.0
    assert token_ids[0] == 40
    assert value[1] == logits[1].max().float() == logits[1, token_ids[1]].float()
    assert value[2:].isnan().all()
    assert all(0 <= token < 300 for token in token_ids.tolist())


def test_rows_may_lie_apart_but_not_have_gaps():
    logits = logits_of(4, 300)
    assert torch.equal(best(logits[:, :250])[1], best(logits[:, :250].contiguous())[1])
    with pytest.raises(ValueError, match=r"^logits: each row"):
        best(logits[:, ::2])


def test_no_rows_give_no_results():
    assert finite_rows(torch.empty(0, 5)).shape == (0,)
    assert best(torch.empty(0, 5))[1].shape == (0,)
    assert score(torch.empty(0, 5), torch.empty(0, 2, dtype=torch.int64))[0].shape == (0, 2)
