"""Linear layers on the CPU: a packed weight stands for the plain one, in every dtype, for any number of rows."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.cpu.linear import activation, norm
from quire.kernels.cpu.linear import linear as cpu
from quire.kernels.cpu.native import load, runnable_sets
from quire.kernels.linear.activation import GATES
from quire.kernels.linear.linear import linear, linear_reference, norm_linear, norm_linear_reference
from quire.kernels.linear.pack import num_outputs, pack, unpack

pytestmark = pytest.mark.sampled(40)

BLOCKED = (torch.float32, torch.bfloat16)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(params=runnable_sets())
def instruction_set(request, monkeypatch):
    for module in (cpu, activation, norm):
        monkeypatch.setattr(module, "native", lambda: load(request.param))
    return request.param


def same(a, b):
    """Bit for bit, NaN included."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tolerance(dtype):
    eps = torch.finfo(dtype).eps
    return {"rtol": 4 * eps, "atol": 100 * eps}


@settings(max_examples=40)
@given(
    rows=st.integers(0, 40),
    inputs=st.integers(1, 100),
    outputs=st.integers(1, 100),
    has_bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_a_packed_weight_gives_the_product_of_the_plain_one(rows, inputs, outputs, has_bias, dtype, seed):
    x, weight = random(rows, inputs, seed=seed, dtype=dtype), random(outputs, inputs, seed=seed + 1, dtype=dtype)
    bias = random(outputs, seed=seed + 2, dtype=dtype) if has_bias else None
    exact = linear_reference(x.double(), weight.double(), None if bias is None else bias.double())
    for form in (weight, pack(weight)):
        out = linear(x, form, bias)
        assert (out.dtype, out.shape, out.is_contiguous()) == (dtype, (rows, outputs), True)
        torch.testing.assert_close(out.double(), exact, **tolerance(dtype))


@pytest.mark.parametrize("outputs", [96, 90])  # in blocks of our own, and through oneDNN
def test_one_packed_copy_serves_every_number_of_rows(outputs):
    weight = random(outputs, 1100, seed=1) / 30
    packed = pack(weight)
    for rows in (1, 2, 11, 12, 13, 16, 17, 24, 25, 128, 700):
        x = random(rows, 1100, seed=1000 + rows)
        torch.testing.assert_close(linear(x, packed, None), linear_reference(x, weight, None), **tolerance(x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [64, 50])
def test_a_packed_weight_is_no_bigger_and_can_be_unpacked(dtype, outputs):
    weight = random(outputs, 48, dtype=dtype)
    before = weight.clone()
    packed = pack(weight)
    assert (packed.dtype, packed.nbytes, num_outputs(packed)) == (dtype, weight.nbytes, outputs)
    if packed is not weight:
        weight.zero_()
    assert torch.equal(unpack(packed), before)
    x, bias = random(3, 48, seed=1, dtype=dtype), random(outputs, seed=2, dtype=dtype)
    assert torch.equal(linear_reference(x, packed, bias), linear_reference(x, before, bias))


@settings(max_examples=40)
@given(
    rows=st.integers(0, 40),
    inputs=st.integers(1, 100),
    blocks=st.integers(1, 6),
    dtype=st.sampled_from(BLOCKED),
    seed=st.integers(0, 99),
)
def test_every_instruction_set_gives_the_product_in_blocks(rows, inputs, blocks, dtype, seed):
    inputs = inputs if dtype is torch.float32 else 32 * (inputs // 8 + 1)
    x, weight = random(rows, inputs, seed=seed, dtype=dtype), random(16 * blocks, inputs, seed=seed + 1, dtype=dtype)
    bias = random(16 * blocks, seed=seed + 2, dtype=dtype)
    packed = pack(weight)
    assert packed.shape == ((blocks, inputs, 16) if dtype is torch.float32 else (blocks, inputs // 2, 16, 2))
    exact = linear_reference(x.double(), weight.double(), bias.double())
    for name in runnable_sets():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cpu, "native", lambda name=name: load(name))
            out = linear(x, packed, bias).double()
        # sums are float32 everywhere: what is left in bfloat16 is one rounding of the result
        torch.testing.assert_close(out, exact, rtol=torch.finfo(dtype).eps, atol=2e-5)


@pytest.mark.parametrize("dtype", BLOCKED)
def test_a_row_does_not_depend_on_its_neighbours_or_on_the_threads(instruction_set, dtype):
    x, residual, gain = (random(*size, seed=seed, dtype=dtype) for seed, size in enumerate([(300, 704)] * 2 + [(704,)]))
    packed = pack(random(64, 704, seed=3, dtype=dtype))
    threads = torch.get_num_threads()
    alone = [linear(row[None], packed, None) for row in x]
    pairs = zip(x, residual, strict=True)
    alone_normed = [norm_linear(a[None], b[None], gain, 1e-6, packed, None, "silu")[0] for a, b in pairs]
    try:
        for count, used in itertools.product((300, 35, 24, 13, 2), (1, 2)):
            torch.set_num_threads(used)
            assert same(linear(x[:count], packed, None), torch.cat(alone[:count]))
            normed, _ = norm_linear(x[:count], residual[:count], gain, 1e-6, packed, None, "silu")
            assert same(normed, torch.cat(alone_normed[:count]))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("gate", [None, *GATES])
@pytest.mark.parametrize("outputs", [64, 48])  # 48: gate and up share a block
@pytest.mark.parametrize("dtype", BLOCKED)
def test_norm_and_activation_joined_with_the_product_equal_the_three_apart(instruction_set, dtype, gate, outputs):
    sizes = [(15, 96), (15, 96), (96,), (outputs,), (outputs, 96)]
    x, residual, gain, bias, weight = (random(*size, seed=seed, dtype=dtype) for seed, size in enumerate(sizes))
    packed = pack(weight)
    for other in (None, residual):
        if other is None:
            normed, expected_total = norm.rms_norm(x, gain, 1e-5), x
        else:
            normed, expected_total = norm.add_rms_norm(x, other, gain, 1e-5)
        wide = linear(normed, packed, bias)
        out, total = norm_linear(x, other, gain, 1e-5, packed, bias, gate)
        assert same(total, expected_total)
        assert same(out, wide if gate is None else activation.gated_activation(wide, gate))


def test_a_dtype_that_onednn_does_not_know_stays_as_it_is():
    weight = random(8, 4, dtype=torch.float64)
    assert pack(weight) is weight


@pytest.mark.parametrize("gate", [None, "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("packs", [False, True])
def test_norm_linear_takes_either_weight(gate, dtype, packs):
    x, residual, norm = random(7, 40, dtype=dtype), random(7, 40, seed=1, dtype=dtype), random(40, seed=2, dtype=dtype)
    weight, bias = random(26, 40, seed=3, dtype=dtype) / 6, random(26, seed=4, dtype=dtype)
    form = pack(weight) if packs else weight
    for other in (None, residual):
        out, total = norm_linear(x, other, norm, 1e-5, form, bias, gate)
        expected, expected_total = norm_linear_reference(x, other, norm, 1e-5, weight, bias, gate)
        assert torch.equal(total, expected_total)
        torch.testing.assert_close(out, expected, rtol=8 * torch.finfo(dtype).eps, atol=64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("outputs", [48, 40])
@pytest.mark.parametrize("dtype", BLOCKED)
def test_a_row_that_is_not_finite_spoils_no_other_row(instruction_set, dtype, bad, outputs):
    x, packed = random(20, 64, dtype=dtype), pack(random(outputs, 64, seed=1, dtype=dtype))
    clean = linear(x, packed, None)
    x[11, 5] = bad
    spoilt = linear(x, packed, None)
    assert not spoilt[11].isfinite().any()
    rest = [row for row in range(20) if row != 11]
    assert torch.equal(spoilt[rest], clean[rest])


def test_a_packed_weight_of_the_wrong_shape_is_refused_by_name():
    for outputs in (3, 16):
        with pytest.raises(ValueError, match="weight: expected shape"):
            linear(random(2, 5), pack(random(outputs, 4)), None)
    with pytest.raises(ValueError, match="bias: expected shape"):
        linear(random(2, 4), pack(random(16, 4)), random(1))
