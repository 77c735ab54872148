"""Experts in words of codes in the interpreter, against each expert's matrix as it is meant, wherever tokens go."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.experts.coded import coded_experts_reference
from quire.kernels.experts.route import NOWHERE
from quire.kernels.gpu.experts.coded import coded_experts
from quire.kernels.linear.linear_group_words import SUPERBLOCK

sys.path.insert(0, str(Path(__file__).parents[3] / "gpu"))  # what is checked on a chip draws its experts there

from word_layers import KINDS, coded

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CPU = torch.device("cpu")


def draw(kind, seed, tokens, k, count, hidden, inner, dtype, biased=False, spread="all"):
    """x, ids, weights, gate_up, down. `spread`: where tokens go: to all, one takes all, or some are padding."""
    torch.manual_seed(seed)
    order = torch.rand(tokens, count).argsort(1)[:, :k].int()
    if spread == "one":
        order[:, 0] = count - 1
        order[:, 1:] = torch.where(order[:, 1:] == count - 1, 0, order[:, 1:])
    if spread == "padding":
        order[::2] = NOWHERE
    x, weights = torch.randn(tokens, hidden).to(dtype), torch.rand(tokens, k)
    bias = dtype if biased else None
    gate_up = coded(kind, count, hidden, 2 * inner, CPU, bias)
    down = coded(kind, count, inner, hidden, CPU, bias)
    return x, order.contiguous(), weights, gate_up, down


def close(got, drawn, kind, first=0):
    """Within what the roundings of both products and of the gate come to, against the reference in float64."""
    x, ids, weights, gate_up, down = drawn
    wide = coded_experts_reference(x.double(), ids, weights, gate_up, down, kind, first)
    assert got.dtype == x.dtype
    room = 1e-5 if x.dtype == F32 else 4 * torch.finfo(x.dtype).eps
    error = (got.double() - wide).norm(dim=1)
    assert (error <= room * (wide.norm(dim=1) + 0.1 * float(wide.norm()))).all()


@settings(max_examples=20)
@given(
    stored=st.sampled_from(KINDS),
    tokens=st.integers(0, 24),
    k=st.integers(1, 3),
    count=st.sampled_from([3, 5, 40]),
    dtype=st.sampled_from([BF16, F16, F32]),
    kind=st.sampled_from(["silu", "gelu_tanh", "swigluoai"]),
    biased=st.booleans(),
    spread=st.sampled_from(["all", "one", "padding"]),
    seed=st.integers(0, 99),
)
def test_the_weighted_sum_is_that_of_the_reference(stored, tokens, k, count, dtype, kind, biased, spread, seed):
    inner = SUPERBLOCK if stored[3] == torch.int8 else 64
    drawn = draw(stored, seed, tokens, k, count, SUPERBLOCK, inner, dtype, biased, spread)
    if kind == "swigluoai":
        drawn[0].mul_(8)  # beyond the limit
    close(coded_experts(*drawn, kind, 0), drawn, kind)


@pytest.mark.parametrize("tokens", [1, 9])
def test_a_rank_adds_what_its_experts_give_and_zeros_where_it_has_none(tokens):
    x, ids, weights, gate_up, down = whole = draw(KINDS[0], 0, tokens, 2, 8, 128, 128, F32, biased=True)
    parts = []
    for first in (0, 4):
        own = [replace(one, each=one.each[first : first + 4]) for one in (gate_up, down)]
        parts.append(coded_experts(x, ids, weights, *own, "silu", first))
        close(parts[-1], (x, ids, weights, *own), "silu", first)
    close(parts[0] + parts[1], whole, "silu")


@pytest.mark.parametrize("tokens", [2, 12])
def test_a_nan_row_ends_alone(tokens):
    drawn = draw(KINDS[6], 1, tokens, 2, 8, 64, 64, BF16, biased=True)
    sound = coded_experts(*drawn, "swigluoai", 0)
    drawn[0][1] = torch.nan
    spoilt = coded_experts(*drawn, "swigluoai", 0)
    assert spoilt[1].isnan().all()
    others = [row for row in range(tokens) if row != 1]
    assert torch.equal(spoilt[others], sound[others])


@pytest.mark.parametrize("kinds", [(KINDS[8], KINDS[10]), (KINDS[0], KINDS[5])])
def test_the_second_matrices_may_be_of_another_kind(kinds):
    """As of files that hold them in 6 bits beside 4."""
    x, ids, weights, gate_up, _ = draw(kinds[0], 2, 6, 2, 4, 256, 256, BF16)
    drawn = x, ids, weights, gate_up, draw(kinds[1], 3, 0, 2, 4, 256, 256, BF16)[4]
    close(coded_experts(*drawn, "silu", 0), drawn, "silu")
