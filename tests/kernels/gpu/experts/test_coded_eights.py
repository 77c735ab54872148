"""Experts of 8-bit floats and integers in the interpreter against their reference, wherever tokens go."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.experts.coded import Coded, CodedMatrices, coded_experts_reference
from quire.kernels.experts.route import NOWHERE
from quire.kernels.gpu.chip import HOST, Chip
from quire.kernels.gpu.experts.coded import PRODUCTS, coded_experts
from quire.kernels.gpu.experts.coded_f8 import quantize_pairs_f8
from quire.kernels.gpu.experts.gate import gated_pairs
from quire.kernels.gpu.experts.sent import sent
from quire.kernels.linear.linear_f8 import F8, quantize
from quire.kernels.linear.linear_f8_blocks import SIDE

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FORMS = ["int8 token", "f8 token", "f8 static", "f8 none", "f8_blocks token", "f8_blocks none"]


class Drawn(NamedTuple):
    """The arguments of `coded_experts` before the gate."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    gate_up: CodedMatrices
    down: CodedMatrices


def matrices(form, seed, count, outputs, inputs, dtype, biased):
    """The matrix of each expert, weights of about 1 / sqrt(inputs)."""
    kind, way = form.split()
    generator = torch.Generator().manual_seed(seed)

    def one():
        weight = torch.randn((outputs, inputs), generator=generator)
        bias = torch.randn(outputs, generator=generator).to(dtype) if biased else None
        if kind == "int8":
            integers = (weight * 40).round().clamp(-127, 127).to(torch.int8)
            scale = (torch.rand(outputs, generator=generator) + 0.5) / (40 * inputs**0.5)
            return Coded(integers, scale, bias=bias)
        shape = (outputs,) if kind == "f8" else (-(-outputs // SIDE), -(-inputs // SIDE))
        scale = (torch.rand(shape, generator=generator) + 0.5) / (16 * inputs**0.5)
        unit = (torch.rand(1, generator=generator) + 0.5) / 64 if way == "static" else None
        return Coded((weight * 16).to(F8), scale, None, unit, bias)

    return CodedMatrices(kind, outputs, inputs, tuple(one() for _ in range(count)), way)


def draw(form, seed, tokens, k, count, hidden, inner, dtype, biased=False, spread="all"):
    """`spread`: where tokens go: to all, one takes all, or some are padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand((tokens, count), generator=generator).argsort(1)[:, :k].int()
    if spread == "one":
        ids[:, 0] = count - 1
        ids[:, 1:] = torch.where(ids[:, 1:] == count - 1, 0, ids[:, 1:])
    if spread == "padding":
        ids[::2] = NOWHERE
    return Drawn(
        torch.randn((tokens, hidden), generator=generator).to(dtype),
        ids.contiguous(),
        torch.rand((tokens, k), generator=generator),
        matrices(form, seed, count, 2 * inner, hidden, dtype, biased),
        matrices(form, seed + 1, count, hidden, inner, dtype, biased),
    )


def close(got, drawn, kind, first=0):
    """Within what a rounding of an activation to a code may be off, where the last bit of a sum decides it."""
    wanted = coded_experts_reference(*drawn, kind, first)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    error, whole = (got.double() - wanted.double()).norm(dim=1), wanted.double().norm(dim=1)
    rounds = drawn.gate_up.activations != "none"
    room = 0.02 if rounds else 1e-5 if got.dtype == F32 else 4 * torch.finfo(got.dtype).eps
    assert (error <= room * (whole + 0.1 * whole.norm())).all()


@settings(max_examples=24)
@given(
    form=st.sampled_from(FORMS),
    tokens=st.integers(0, 24),
    k=st.integers(1, 3),
    count=st.sampled_from([3, 5, 40]),
    sizes=st.sampled_from([(64, 32), (144, 208), (200, 16)]),
    dtype=st.sampled_from([BF16, F16, F32]),
    kind=st.sampled_from(["silu", "gelu_tanh", "swigluoai"]),
    biased=st.booleans(),
    spread=st.sampled_from(["all", "one", "padding"]),
    seed=st.integers(0, 99),
)
def test_the_weighted_sum_is_that_of_the_reference(form, tokens, k, count, sizes, dtype, kind, biased, spread, seed):
    drawn = draw(form, seed, tokens, k, count, *sizes, dtype, biased, spread)
    close(coded_experts(*drawn, kind, 0), drawn, kind)


@pytest.mark.parametrize("form", FORMS)
def test_many_pairs_of_an_expert_take_wide_tiles(form):
    drawn = draw(form, 3, 80, 2, 2, 160, 144, BF16, biased=True)
    close(coded_experts(*drawn, "silu", 0), drawn, "silu")


@pytest.mark.parametrize("form", ["f8 token", "f8 static", "f8_blocks token"])
def test_chips_without_8_bit_floats_multiply_activations_as_they_are(form):
    drawn = draw(form, 4, 9, 2, 4, 64, 32, BF16)
    plain = drawn._replace(
        gate_up=CodedMatrices(*_fields(drawn.gate_up), "none"), down=CodedMatrices(*_fields(drawn.down), "none")
    )
    token = HOST.set(Chip("an older chip", 80, 1))
    got = coded_experts(*drawn, "silu", 0)
    HOST.reset(token)
    close(got, plain, "silu")


def _fields(of):
    each = tuple(one._replace(unit=None) for one in of.each)
    return of.kind, of.outputs, of.inputs, each


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 20])
def test_a_rank_adds_what_its_experts_give_and_zeros_where_it_has_none(form, tokens):
    drawn = draw(form, 0, tokens, 2, 8, 64, 32, F32)
    parts = []
    for first in (0, 4):
        own = (CodedMatrices(*_of(one, first, 4)) for one in (drawn.gate_up, drawn.down))
        part = drawn._replace(gate_up=next(own), down=next(own))
        parts.append(coded_experts(*part, "silu", first))
        close(parts[-1], part, "silu", first)
    torch.testing.assert_close(parts[0] + parts[1], coded_experts(*drawn, "silu", 0))


def _of(whole, first, count):
    return whole.kind, whole.outputs, whole.inputs, whole.each[first : first + count], whole.activations


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [2, 20])
def test_a_nan_row_ends_alone(form, tokens):
    drawn = draw(form, 1, tokens, 2, 8, 64, 32, BF16)
    sound = coded_experts(*drawn, "silu", 0)
    drawn.x[1, 3] = torch.nan
    spoilt = coded_experts(*drawn, "silu", 0)
    assert spoilt[1].isnan().all()
    others = [row for row in range(tokens) if row != 1]
    assert torch.equal(spoilt[others], sound[others])


@pytest.mark.parametrize("form", FORMS)
def test_equal_tokens_get_equal_results_wherever_they_stand_among_the_sorted(form):
    drawn = draw(form, 2, 24, 2, 4, 64, 32, BF16)
    for rows in drawn[:3]:
        rows[5:] = rows[5].clone()
    out = coded_experts(*drawn, "silu", 0)
    assert all(torch.equal(row, out[5]) for row in out[6:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 20])
def test_a_gate_in_the_launch_that_rounds_is_the_gate_before_it_to_the_bit(form, tokens):
    drawn = draw(form, 6, tokens, 2, 8, 64, 32, BF16)
    where = sent(drawn.ids, 0, 8)
    product, wide = PRODUCTS[drawn.down.kind], torch.randn((2 * tokens, 64)).to(BF16)
    joined = product(wide, drawn.down, where, 1, True, "silu")
    assert torch.equal(joined, product(gated_pairs(wide, "silu"), drawn.down, where, 1, True, None))


@pytest.mark.parametrize("count", [3, 40])
def test_each_pair_is_rounded_by_the_scale_of_its_expert(count):
    x, ids, _, gate_up, _ = draw("f8 static", 5, 6, 2, count, 64, 32, BF16)
    where = sent(ids, 0, count)
    pairs = range(12) if where.starts is None else where.pairs.tolist()
    codes, scales = quantize_pairs_f8(x, gate_up, where, 2)
    for place, pair in enumerate(pairs):
        wanted, scale = quantize(x[pair // 2][None], gate_up.each[ids.flatten()[pair]].unit)
        assert torch.equal(codes[place].float(), wanted[0].float())
        assert scales[place] == scale
