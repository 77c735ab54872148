"""Layers of experts on CPUs against their references, packed and plain, wherever the tokens go."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.kernels.cpu.native import UnsupportedDtypeError
from quire.kernels.experts.experts import experts, experts_reference
from quire.kernels.experts.pack import is_blocked, pack_experts, unpack
from quire.kernels.experts.route import NOWHERE, Routing, route, route_reference
from quire.kernels.experts.shared import add_shared, add_shared_reference

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]
LAX = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def draw(seed, tokens, k, count, hidden, inner, dtype, spread="all"):
    """x, ids, weights, gate_up, down. `spread`: tokens go to all experts, to one besides, or every other is padding."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens, hidden), (count, 2 * inner, hidden), (count, hidden, inner)
    x, gate_up, down = (torch.randn(shape, generator=generator) for shape in shapes)
    ids = torch.rand((tokens, count), generator=generator).argsort(1)[:, :k].int().contiguous()
    if spread == "one":
        ids[:, 1:] = torch.where(ids[:, 1:] == count - 1, ids[:, :1], ids[:, 1:])
        ids[:, 0] = count - 1
    if spread == "padding":
        ids[::2] = NOWHERE
    weights = torch.rand((tokens, k), generator=generator)
    return x.to(dtype), ids, weights, (gate_up / hidden**0.5).to(dtype), (down / inner**0.5).to(dtype)


def close(got, arguments, *how):
    wide = [one.double() if one is not None and one.is_floating_point() else one for one in arguments]
    wanted = experts_reference(*wide[:2], arguments[2], *wide[3:5], *how, *wide[5:])
    x = arguments[0]
    assert got.dtype == x.dtype
    room = 1e-5 if x.dtype == F32 else 8 * torch.finfo(x.dtype).eps
    torch.testing.assert_close(got.double(), wanted, rtol=room, atol=room * (float(wanted.norm()) + 0.1))


@LAX
@given(
    tokens=st.integers(0, 60),
    k=st.integers(1, 3),
    count=st.sampled_from([3, 4, 9]),
    sizes=st.sampled_from([(64, 32), (96, 64), (33, 20)]),
    dtype=st.sampled_from([BF16, F16, F32]),
    kind=st.sampled_from(["silu", "gelu", "gelu_tanh", "swigluoai"]),
    spread=st.sampled_from(["all", "one", "padding"]),
    first=st.sampled_from([0, 1]),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_experts_give_the_weighted_sum_wherever_tokens_go(
    tokens, k, count, sizes, dtype, kind, spread, first, biased, seed
):
    x, ids, weights, gate_up, down = draw(seed, tokens, k, count, *sizes, dtype, spread)
    plain = gate_up[first:].contiguous(), down[first:].contiguous()
    biases = [4 * torch.randn(one.shape[:2]).to(dtype) for one in plain] if biased else [None, None]
    packed = pack_experts(*(weight.clone() for weight in plain))
    assert all(is_blocked(one) == (dtype != F16 and sizes[0] != 33) for one in packed)
    assert all(torch.equal(unpack(one), was) for one, was in zip(packed, plain, strict=True))
    got = experts(x, ids, weights, *packed, kind, first, *biases)
    close(got, (x, ids, weights, *plain, *biases), kind, first)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_many_rows_of_an_expert_are_multiplied_in_chunks(dtype):
    arguments = draw(5, 700, 2, 3, 64, 32, dtype, "one")
    close(
        experts(*arguments[:3], *pack_experts(*(one.clone() for one in arguments[3:])), "silu", 0), arguments, "silu", 0
    )


@pytest.mark.parametrize("threads_used", [1, 2, 3])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_neither_threads_nor_other_tokens_change_a_token(threads, threads_used, dtype):
    x, ids, weights, *plain = draw(3, 40, 3, 8, 96, 64, dtype)
    packed = pack_experts(*plain)
    threads(1)
    whole = experts(x, ids, weights, *packed, "silu", 0)
    threads(threads_used)
    assert torch.equal(experts(x, ids, weights, *packed, "silu", 0), whole)
    x[7] = torch.nan
    spoilt = experts(x, ids, weights, *packed, "silu", 0)
    assert spoilt[7].isnan().all()
    others = [row for row in range(40) if row != 7]
    assert torch.equal(spoilt[others], whole[others])


@LAX
@given(
    tokens=st.integers(0, 5),
    count=st.sampled_from([4, 12, 60]),
    k=st.integers(1, 4),
    scores=st.sampled_from(["softmax", "sigmoid"]),
    renormalize=st.booleans(),
    groups=st.sampled_from([1, 2]),
    biased=st.booleans(),
    dtype=st.sampled_from([BF16, F16, F32]),
    seed=st.integers(0, 99),
)
def test_routes_are_those_of_the_reference(tokens, count, k, scores, renormalize, groups, biased, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((tokens, count + seed % 3), generator=generator).to(dtype)
    logits[:, 2] = logits[:, 1]  # of equals, the first
    if tokens > 2:
        logits[2] = torch.nan
    bias = torch.randn(count, generator=generator) if biased else None
    slots = torch.arange(tokens) - 1 if seed % 2 else None
    routing = Routing(count, min(k, count // groups), scores, renormalize, 1.5, groups, 1)
    ids, weights = route(logits, bias, slots, routing)
    wanted_ids, wanted_weights = route_reference(logits, bias, slots, routing)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted_weights, rtol=1e-5, atol=1e-7, equal_nan=True)


def test_logits_of_a_type_it_does_not_know_are_refused():
    with pytest.raises(UnsupportedDtypeError, match="logits: CPU kernels know"):
        route(torch.zeros((1, 4), dtype=torch.float64), None, None, Routing(4, 1))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("weighed", [True, False])
def test_what_all_tokens_have_is_added(dtype, weighed):
    generator = torch.Generator().manual_seed(0)
    routed, shared, logits = (torch.randn((9, size), generator=generator).to(dtype) for size in (40, 40, 16))
    given = routed, shared, logits if weighed else None, 7
    torch.testing.assert_close(add_shared(*given), add_shared_reference(*given))


def test_a_logit_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="column: 4 is none of 4 logits"):
        add_shared(torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2, 4), 4)
