"""Experts of quantized matrices on CPUs: all in one call, against an expert after the other by the references."""

import pytest
import torch
from coded_layers import COUNT, DTYPES, FORMS, HIDDEN, INNER, draw_experts

from quire.kernels.experts.coded import CodedMatrices, coded_experts, coded_experts_reference

pytestmark = pytest.mark.sampled(40)


def close(got, wanted):
    """Within what a rounding of an activation to a code may be off, where the gate's last bit decides it."""
    room = 0.03 if got.dtype != torch.bfloat16 else 0.06
    assert got.dtype == wanted.dtype
    assert 0 < wanted.float().norm() < torch.inf
    torch.testing.assert_close(got.float(), wanted.float(), rtol=room, atol=room * float(wanted.float().abs().max()))
    assert (got.double() - wanted.double()).norm() <= 0.01 * wanted.double().norm()


@pytest.mark.parametrize("form", FORMS)
def test_all_experts_in_one_call_give_what_each_gives_by_itself(instruction_set, form):
    ways = ((1, 1, "silu", False), (7, 2, "gelu", False), (40, 2, "swigluoai", True))
    for (tokens, k, kind, biased), dtype in zip(ways, DTYPES, strict=True):
        given = draw_experts(form, tokens, k, dtype, biased, seed=tokens)
        close(coded_experts(*given, kind, 0), coded_experts_reference(*given, kind, 0))


@pytest.mark.parametrize("form", ["int8", "f8 blocks token", "groups 4 e2m1+powers 32 none"])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_neither_threads_nor_other_tokens_nor_a_tape_change_a_token(instruction_set, threads, form, dtype):
    x, ids, weights, gate_up, down = draw_experts(form, 24, 2, dtype)
    threads(1)
    whole = coded_experts(x, ids, weights, gate_up, down, "silu", 0)
    assert not whole[1].any()
    threads(3)
    assert torch.equal(coded_experts(x, ids, weights, gate_up, down, "silu", 0), whole)
    assert torch.equal(coded_experts(x[:1], ids[:1], weights[:1], gate_up, down, "silu", 0), whole[:1])
    elsewhere = coded_experts(x, ids + 10, weights, gate_up, down, "silu", 10)
    assert torch.equal(elsewhere, whole)
    x[7] = torch.nan
    spoilt = coded_experts(x, ids, weights, gate_up, down, "silu", 0)
    assert spoilt[7].isnan().all()
    others = [row for row in range(24) if row != 7]
    assert torch.equal(spoilt[others], whole[others])


def test_experts_that_do_not_fit_each_other_are_refused():
    x, ids, weights, gate_up, down = draw_experts("int8", 3, 2, torch.float32)
    with pytest.raises(ValueError, match=f"down: expected {COUNT} matrices of {HIDDEN} x {INNER}"):
        coded_experts(x, ids, weights, gate_up, gate_up, "silu", 0)
    with pytest.raises(ValueError, match=r"each\.scale"):
        CodedMatrices("int8", HIDDEN, INNER, (down.each[0], down.each[1]._replace(scale=torch.zeros(3))))
    with pytest.raises(ValueError, match="all experts have a bias, or none has"):
        CodedMatrices("int8", HIDDEN, INNER, (down.each[0], down.each[1]._replace(bias=torch.zeros(HIDDEN))))
