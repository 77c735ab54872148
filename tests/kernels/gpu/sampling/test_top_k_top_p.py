"""The truncation kernels against their reference, in the interpreter."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.sampling.top_k_top_p import top_k_top_p, top_k_top_p_in_chunks
from quire.kernels.sampling.top_k_top_p import top_k_top_p_reference

pytestmark = [
    pytest.mark.usefixtures("poisoned_results"),
    # min_p = 0 is the probability of -inf, and meant to be
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log", "ignore:invalid value encountered"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = 1e-5
"""Relative error of a mass: what it decides is decided by chance."""

limits = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 2.0, 1e-30]),
    st.sampled_from([0, 0, 1, 2, 7, 40, 10**12]),
    st.sampled_from([1.0, 1.0, 0.999, 0.9, 0.5, 1e-6]),
    st.sampled_from([0.0, 0.0, 1e-4, 0.05, 1.0]),
)


def logits_of(num_rows, vocab, seed, spread=3.0):
    return spread * torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed))


def columns(rows):
    temperature, k, p, m = zip(*rows, strict=True)
    return torch.tensor(temperature), torch.tensor(k), torch.tensor(p), torch.tensor(m)


def agrees(floor, logits, temperature, k, p, m):
    """The floor is the reference's, or one that a mass within rounding would have given."""
    least = top_k_top_p_reference(logits, temperature, k, torch.where(p < 1.0, p * (1 + ROUNDING), p), m)
    most = top_k_top_p_reference(logits, temperature, k, torch.where(p < 1.0, p * (1 - ROUNDING), p), m)
    assert ((least <= floor) & (floor <= most)).all(), (floor, least, most)
    present = (logits.float() == floor[:, None]).any(dim=1)
    assert (present | (floor == -math.inf)).all(), "a floor is one of the row's logits"


@settings(max_examples=40)
@given(
    st.sampled_from(DTYPES),
    st.lists(limits, min_size=1, max_size=4),
    st.sampled_from([1, 2, 31, 64, 65, 130, 300]),
    st.sampled_from([0.02, 1.0, 8.0]),
    st.sampled_from([4, 40, 400]),
    st.integers(0, 999),
)
def test_floors_equal_the_reference(dtype, rows, vocab, spread, capacity, seed):
    """A capacity of 4 makes nearly every row be searched whole, one of 400 none."""
    logits = logits_of(len(rows), vocab, seed, spread).to(dtype)
    parameters = columns(rows)
    agrees(top_k_top_p_in_chunks(logits, *parameters, chunk=64, capacity=capacity, block=32), logits, *parameters)


@pytest.mark.parametrize("capacity", [8, 512])
@pytest.mark.parametrize(
    "row",
    [(1.0, 0, 0.9, 0.0), (0.7, 100, 1.0, 0.0), (1.0, 100, 0.8, 0.0), (1.0, 0, 1.0, 0.01), (1.0, 300, 0.95, 0.001)],
)
def test_every_limit_alone_and_with_others_is_exact(row, capacity):
    logits, parameters = logits_of(2, 600, seed=1), columns([row] * 2)
    floor = top_k_top_p_in_chunks(logits, *parameters, chunk=256, capacity=capacity, block=256)
    assert torch.equal(floor, top_k_top_p_reference(logits, *parameters))


def test_the_shipped_sizes_give_the_same():
    logits, parameters = logits_of(2, 5000, seed=2), columns([(1.0, 0, 0.9, 0.0), (1.0, 50, 0.9, 0.0)])
    assert torch.equal(top_k_top_p(logits, *parameters), top_k_top_p_reference(logits, *parameters))


def test_equal_logits_share_their_fate():
    logits = torch.tensor([[0.0, -1.0, -1.0, -1.0, -9.0]] * 3)
    assert top_k_top_p(logits, *columns([(1.0, 2, 1.0, 0.0), (1.0, 0, 0.6, 0.0), (1.0, 5, 1.0, 0.0)])).tolist() == [
        -1.0,
        -1.0,
        -math.inf,
    ]
    same, parameters = torch.full((2, 200), 3.0), columns([(1.0, 9, 1.0, 0.0), (1.0, 0, 0.1, 0.0)])
    assert top_k_top_p_in_chunks(same, *parameters, chunk=64, capacity=8, block=32).tolist() == [3.0, 3.0]


def test_forbidden_tokens_do_not_count():
    logits = torch.full((4, 200), -math.inf)
    logits[:, [7, 150]] = torch.tensor([1.0, 0.0])
    parameters = columns([(1.0, 50, 0.5, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 50, 1.0, 0.0), (1.0, 50, 1.0, 0.01)])
    floor = top_k_top_p_in_chunks(logits, *parameters, chunk=64, capacity=40, block=32)
    assert floor.tolist() == [1.0, 0.0, -math.inf, 0.0]
    assert torch.equal(floor, top_k_top_p_reference(logits, *parameters))


def test_logits_about_zero_and_of_either_sign_are_told_apart():
    logits = torch.tensor([[-0.0, 0.0, 1e-42, -1e-42, 1e-30, -1e-30, -1.0, 2.0]])
    logits, parameters = logits.expand(7, -1).contiguous(), columns([(1.0, k, 1.0, 0.0) for k in range(1, 8)])
    floor = top_k_top_p_in_chunks(logits, *parameters, chunk=64, capacity=8, block=32)
    assert torch.equal(floor, top_k_top_p_reference(logits, *parameters))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("everywhere", [True, False])
def test_unsound_rows_end_and_leave_the_others_alone(value, everywhere):
    logits = logits_of(5, 200, seed=3)
    parameters = columns(
        [(1.0, 0, 0.9, 0.0), (1.0, 5, 1.0, 0.0), (1.0, 5, 0.7, 0.1), (1.0, 0, 0.9, 0.0), (0.0, 0, 1.0, 0.0)]
    )
    expected = top_k_top_p_reference(logits, *parameters)
    for row in (0, 1, 2):
        logits[row, slice(None) if everywhere else slice(60, 70)] = value
    floor = top_k_top_p_in_chunks(logits, *parameters, chunk=64, capacity=40, block=32)
    assert torch.equal(floor[3:], expected[3:])


def test_a_row_is_cut_alike_in_any_batch():
    logits, parameters = logits_of(3, 300, seed=4), columns([(1.0, 0, 0.9, 0.0)] * 3)
    together = top_k_top_p_in_chunks(logits, *parameters, chunk=64, capacity=400, block=32)
    for row in range(3):
        one = slice(row, row + 1)
        alone = top_k_top_p_in_chunks(
            logits[one], *(column[one] for column in parameters), chunk=64, capacity=400, block=32
        )
        assert torch.equal(alone, together[one])


def test_no_rows_and_rows_that_lie_apart():
    nothing = columns([(1.0, 0, 0.9, 0.0)])
    assert top_k_top_p(torch.empty(0, 9), *(column[:0] for column in nothing)).shape == (0,)
    wide, parameters = logits_of(3, 200, seed=5), columns([(1.0, 3, 0.9, 0.0)] * 3)
    assert torch.equal(top_k_top_p(wide[:, :111], *parameters), top_k_top_p(wide[:, :111].contiguous(), *parameters))
