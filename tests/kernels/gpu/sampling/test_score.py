"""The kernels that read rows of logits against their references, in the interpreter."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.sampling.score import best, finite_rows, score
from quire.kernels.gpu.sampling.tiles import CHUNK
from quire.kernels.sampling.score import best_reference, finite_rows_reference, score_reference

pytestmark = [
    pytest.mark.usefixtures("poisoned_results"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log", "ignore:invalid value encountered"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def logits_of(num_rows, vocab, seed, dtype=torch.float32):
    return (3 * torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(max_examples=40)
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 6),
    st.one_of(st.integers(1, 300), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 130])),
    st.integers(0, 5),
    st.sampled_from([None, math.nan, math.inf, -math.inf]),
    st.integers(0, 999),
)
def test_everything_read_equals_the_reference(dtype, num_rows, vocab, num_ids, poison, seed):
    logits = logits_of(num_rows, vocab, seed, dtype)
    if poison is not None:
        logits[::2, seed % vocab] = poison
    assert torch.equal(finite_rows(logits), finite_rows_reference(logits))
    token_ids = torch.randint(vocab, (num_rows, num_ids), generator=torch.Generator().manual_seed(seed))
    logprobs, ranks = score(logits, token_ids)
    expected, expected_ranks = score_reference(logits, token_ids)
    sound = expected.isfinite()
    assert torch.equal(logprobs.isfinite(), sound)
    torch.testing.assert_close(logprobs[sound], expected[sound], rtol=1e-4, atol=1e-5)
    assert torch.equal(ranks[sound], expected_ranks[sound])
    value, ids = best(logits)
    expected_value, expected_ids = best_reference(logits)
    torch.testing.assert_close(value, expected_value, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ids[~value.isnan()], expected_ids[~value.isnan()])
    assert ((ids >= 0) & (ids < vocab)).all()


def test_the_best_is_the_lowest_id_among_equals():
    logits = logits_of(3, 2 * CHUNK + 5, 1)
    logits[0, [2 * CHUNK, CHUNK + 7, CHUNK + 9]] = 40.0
    logits[1, [CHUNK, CHUNK - 1]] = 40.0
    logits[2] = 1.0
    assert best(logits)[1].tolist() == [CHUNK + 7, CHUNK - 1, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_of_nothing_sound_are_told(value):
    logits = torch.full((2, CHUNK + 3), value)
    assert not finite_rows(logits).any()
    assert best(logits)[0].isnan().all()
    assert ((best(logits)[1] >= 0) & (best(logits)[1] < CHUNK + 3)).all()
    assert not score(logits, torch.tensor([[0], [CHUNK]]))[0].isfinite().any()


@pytest.mark.parametrize("token", [0, CHUNK - 1, CHUNK, CHUNK + 2])
def test_an_unsound_logit_is_found_wherever_it_is(token):
    logits = logits_of(3, CHUNK + 3, 4)
    logits[1, token] = math.nan
    assert finite_rows(logits).tolist() == [True, False, True]
    assert best(logits)[0].isnan().tolist() == [False, True, False]


def test_rows_may_lie_apart():
    wide, token_ids = logits_of(3, 400, 5), torch.tensor([[0, 332]] * 3)
    view = wide[:, :333]
    wide[:, 333:] = math.nan
    assert finite_rows(view).all()
    assert torch.equal(best(view)[0], best(view.contiguous())[0])
    assert torch.equal(score(view, token_ids)[1], score(view.contiguous(), token_ids)[1])
