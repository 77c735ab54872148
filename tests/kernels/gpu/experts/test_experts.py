"""The kernels of layers of experts in the interpreter against their references, wherever the tokens go."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.experts.experts import experts_reference
from quire.kernels.experts.route import NOWHERE, Routing, route_reference
from quire.kernels.gpu.experts import experts as forms
from quire.kernels.gpu.experts.route import route
from quire.kernels.gpu.experts.sort import sort_by_expert
from quire.kernels.gpu.experts.tiles import are_few, most_tiles, product_tiles

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SMALL = {"block_o": 32, "block_i": 32, "num_warps": 1, "num_stages": 2}


def draw(seed, tokens, k, experts, hidden, inner, dtype, spread="all"):
    """x, ids, weights, gate_up, down. `spread`: where tokens go: to all, one takes all, or some are padding."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner)
    x, gate_up, down = (torch.randn(shape, generator=generator) for shape in shapes)
    order = torch.rand((tokens, experts), generator=generator).argsort(1)[:, :k].int()
    if spread == "one":
        order[:, 0] = experts - 1
        order[:, 1:] = torch.where(order[:, 1:] == experts - 1, 0, order[:, 1:])
    if spread == "padding":
        order[::2] = NOWHERE
    weights = torch.rand((tokens, k), generator=generator)
    return x.to(dtype), order.contiguous(), weights, (gate_up / hidden**0.5).to(dtype), (down / inner**0.5).to(dtype)


def biases(arguments, seed):
    """gate_up_bias, down_bias"""
    x, _, _, gate_up, down = arguments
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(one.shape[:2], generator=generator).to(x.dtype) for one in (gate_up, down))


def close(got, arguments, kind, first, added=(None, None)):
    x, ids, weights, gate_up, down = arguments
    added = (None if bias is None else bias.double() for bias in added)
    wide = experts_reference(x.double(), ids, weights, gate_up.double(), down.double(), kind, first, *added)
    assert got.dtype == x.dtype
    room = 1e-5 if x.dtype == F32 else 8 * torch.finfo(x.dtype).eps
    torch.testing.assert_close(got.double(), wide, rtol=room, atol=room * (float(wide.norm()) + 0.1))


@settings(max_examples=12)
@given(
    tokens=st.integers(0, 40),
    k=st.integers(1, 3),
    experts=st.sampled_from([3, 4, 9]),
    sizes=st.sampled_from([(32, 32), (33, 20), (70, 48)]),
    dtype=st.sampled_from([BF16, F16, F32]),
    kind=st.sampled_from(["silu", "gelu", "gelu_tanh", "swigluoai"]),
    biased=st.booleans(),
    spread=st.sampled_from(["all", "one", "padding"]),
    rows=st.sampled_from([16, 32, 64]),
    seed=st.integers(0, 99),
)
def test_both_bodies_give_the_weighted_sum_wherever_tokens_go(
    tokens, k, experts, sizes, dtype, kind, biased, spread, rows, seed
):
    arguments = draw(seed, tokens, k, experts, *sizes, dtype, spread)
    if kind == "swigluoai":
        arguments[0].mul_(8)  # beyond the limit
    added = biases(arguments, seed) if biased else (None, None)
    close(forms.few_experts(*arguments, kind, 0, *added), arguments, kind, 0, added)
    if tokens:
        tiles = {"rows": rows, **SMALL}
        close(forms.sorted_experts(*arguments, kind, 0, tiles, tiles, *added), arguments, kind, 0, added)


@pytest.mark.parametrize("tokens", [1, 2, 30])
def test_a_rank_adds_what_its_experts_give_and_zeros_where_it_has_none(tokens):
    x, ids, weights, gate_up, down = whole = draw(0, tokens, 2, 8, 32, 16, F32)
    added, parts = biases(whole, 0), []
    for first in (0, 4):
        own = slice(first, first + 4)
        arguments = x, ids, weights, gate_up[own].contiguous(), down[own].contiguous()
        part = [bias[own].contiguous() for bias in added]
        parts.append(forms.experts(*arguments, "silu", first, *part))
        close(parts[-1], arguments, "silu", first, part)
    wanted = experts_reference(x, ids, weights, gate_up, down, "silu", 0, *added)
    torch.testing.assert_close(parts[0] + parts[1], wanted)


@pytest.mark.parametrize("kind", ["silu", "swigluoai"])
@pytest.mark.parametrize("tokens", [2, 20])
def test_a_nan_row_ends_alone(tokens, kind):
    arguments = draw(1, tokens, 2, 8, 32, 16, F32)
    added = biases(arguments, 1)
    sound = forms.experts(*arguments, kind, 0, *added)
    arguments[0][1] = torch.nan
    spoilt = forms.experts(*arguments, kind, 0, *added)
    assert spoilt[1].isnan().all()
    others = [row for row in range(tokens) if row != 1]
    assert torch.equal(spoilt[others], sound[others])


def test_equal_tokens_get_equal_results_wherever_they_stand_among_the_sorted():
    x, ids, weights, gate_up, down = draw(2, 24, 2, 4, 32, 16, BF16)
    x[5:], ids[5:], weights[5:] = x[5].clone(), ids[5].clone(), weights[5].clone()
    out = forms.experts(x, ids, weights, gate_up, down, "silu", 0)
    assert all(torch.equal(row, out[5]) for row in out[6:])


@pytest.mark.parametrize(("count", "block"), [(1, 32), (70, 64), (300, 2048)])
def test_pairs_are_sorted_by_expert_and_in_their_order(count, block, monkeypatch):
    monkeypatch.setattr("quire.kernels.gpu.experts.sort.BLOCK", block)
    ids = torch.randint(-1, 7, (count, 2), generator=torch.Generator().manual_seed(count), dtype=torch.int32)
    pairs, starts = sort_by_expert(ids, 2, 4)
    wanted = [(ids.flatten() == expert).nonzero().flatten().tolist() for expert in range(2, 6)]
    assert starts.diff().tolist() == [len(own) for own in wanted]
    assert starts[0] == 0
    assert pairs[: starts[-1]].tolist() == [pair for own in wanted for pair in own]


def test_no_more_tiles_are_ever_needed_than_are_launched():
    for experts, rows in ((1, 16), (7, 16), (128, 64)):
        for num_pairs in (1, 5, 16, 17, 1000):
            for busy in (1, min(num_pairs, experts)):  # one takes all but a pair of each other
                counts = [num_pairs - busy + 1, *[1] * (busy - 1)]
                assert sum(-(-count // rows) for count in counts) <= most_tiles(num_pairs, experts, rows)


def test_the_body_and_the_tiles_hang_on_the_number_of_pairs():
    assert are_few(32, 128)
    assert not are_few(33, 128)
    assert [product_tiles(pairs, 128, BF16, gated=True)["rows"] for pairs in (128, 4096, 65536)] == [16, 64, 128]


@settings(max_examples=25)
@given(
    tokens=st.integers(0, 5),
    experts=st.sampled_from([4, 12, 60]),
    k=st.integers(1, 4),
    scores=st.sampled_from(["softmax", "sigmoid"]),
    renormalize=st.booleans(),
    groups=st.sampled_from([1, 2]),
    biased=st.booleans(),
    dtype=st.sampled_from([BF16, F32]),
    seed=st.integers(0, 99),
)
def test_routes_are_those_of_the_reference(tokens, experts, k, scores, renormalize, groups, biased, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((tokens, experts + seed % 3), generator=generator).to(dtype)
    logits[:, 2] = logits[:, 1]  # of equals, the first
    if tokens > 2:
        logits[2] = torch.nan
    bias = torch.randn(experts, generator=generator) if biased else None
    slots = torch.arange(tokens) - 1 if seed % 2 else None
    routing = Routing(experts, min(k, experts // groups), scores, renormalize, 1.5, groups, 1)
    kept = torch.full((tokens, routing.top_k), 9, dtype=torch.int32)
    ids, weights = route(logits, bias, slots, routing, kept)
    assert ids is kept
    wanted_ids, wanted_weights = route_reference(logits, bias, slots, routing)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted_weights, rtol=1e-5, atol=1e-7, equal_nan=True)
