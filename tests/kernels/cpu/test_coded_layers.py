"""What holds of every form of coded weights, in the compiled form for every instruction set here."""

import itertools

import pytest
import torch
from coded_layers import DTYPES, F8_BLOCKS, FORMS, coded_layer, random, same

from quire.kernels.cpu.linear import activation, norm
from quire.kernels.linear.activation import GATES

pytestmark = pytest.mark.sampled(60)

ALONE = [*range(25), *range(25, 300, 11), 299]
"""Rows that are multiplied one by one: every place in the widest tile, and some of later ones."""


def normal(x):
    """x with zeros for subnormal numbers, which the instruction that rounds sums to bfloat16 takes for zeros."""
    return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, x) if x.dtype is torch.bfloat16 else x


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours_or_on_the_threads(instruction_set, threads, form, dtype):
    inputs = 2336 if "row" in form.split() else 704
    case, gain = coded_layer(form, 192, inputs), random(inputs, seed=2, dtype=dtype)
    x = (random(300, inputs) * torch.logspace(-3, 3, 300)[:, None]).to(dtype)
    residual = random(300, inputs, seed=3, dtype=dtype)
    alone = torch.cat([case(x[row][None]) for row in ALONE])
    alone_normed = torch.cat([case.normed(x[row][None], residual[row][None], gain, gate="silu")[0] for row in ALONE])
    for count, used in itertools.product((300, 25, 24, 13, 9, 7, 2), (1, 2)):
        threads(used)
        rows = [row for row in ALONE if row < count]
        assert same(case(x[:count])[rows], alone[: len(rows)])
        assert same(case.normed(x[:count], residual[:count], gain, gate="silu")[0][rows], alone_normed[: len(rows)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_is_not_finite_spoils_no_other_row(instruction_set, form, dtype):
    case, x, gain = coded_layer(form, 32, 192), random(20, 192, dtype=dtype), random(192, seed=2, dtype=dtype)
    rest = [row for row in range(20) if row != 11]
    for run in (case, lambda x: case.normed(x, None, gain, gate="gelu")[0]):
        clean = run(x)
        for bad in (torch.nan, torch.inf, -torch.inf):
            spoilt = x.clone()
            spoilt[11, 150] = bad
            out = run(spoilt)
            assert not out[11].isfinite().any(), bad
            assert not case.rounds or out[11].isnan().all(), bad
            assert same(out[rest], clean[rest]), bad


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_zeros_and_zero_scales_give_the_bias(instruction_set, form):
    case, bias = coded_layer(form, 48, 192), random(48)
    for rows in (1, 30):
        assert torch.equal(case(torch.zeros(rows, 192), bias), bias.expand(rows, 48))
    case.clear()
    for rows in (1, 30):
        assert torch.equal(case(random(rows, 192), bias), bias.expand(rows, 48))


@pytest.mark.parametrize("form", FORMS)
def test_no_rows_and_one_row(instruction_set, form):
    case = coded_layer(form, 32, 64)
    for rows in (0, 1):
        x = random(rows, 64)
        assert case(x).shape == (rows, 32)
        out, total = case.normed(x, x, torch.ones(64), gate="silu")
        assert (out.shape, total.shape) == ((rows, 16), (rows, 64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_norm_and_activation_joined_with_the_product_equal_the_three_apart(instruction_set, dtype, form):
    x, residual, gain = (random(*size, 192, seed=seed, dtype=dtype) for seed, size in enumerate([(15,), (15,), ()]))
    wholes = ((None, norm.rms_norm(x, gain, 1e-5), x), (residual, *norm.add_rms_norm(x, residual, gain, 1e-5)))
    # 48: gate and up share a block; 70: and the last one is not full
    sizes = {64: (None, *GATES), 48: (None, "silu")} | ({} if form in F8_BLOCKS else {70: (None, "silu")})
    for outputs, gates in sizes.items():
        case, bias = coded_layer(form, outputs, 192, 4), random(outputs, seed=3, dtype=dtype)
        for other, normed, expected_total in wholes:
            wide = case(normed, bias)
            for gate in gates:
                out, total = case.normed(x, other, gain, bias, gate)
                assert same(total, expected_total), (outputs, gate)
                expected = wide if gate is None else activation.gated_activation(wide, gate)
                assert same(normal(out), normal(expected)), (outputs, gate)


@pytest.mark.parametrize("form", FORMS)
def test_the_references_agree_up_to_the_rounding_of_activations(instruction_set, form):
    x, residual, gain = random(9, 256), random(9, 256, seed=1), random(256, seed=2)
    case = coded_layer(form, 64, 256, 3)
    torch.testing.assert_close(case(x), case.reference(x), rtol=1e-5, atol=1e-4)
    out, total = case.normed(x, residual, gain, gate="gelu_tanh")
    expected, expected_total = case.reference_normed(x, residual, gain, "gelu_tanh")
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))
