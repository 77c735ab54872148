"""Linear layers on groups of codes: the compiled form for every instruction set here against the product in float64."""

import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from quire.kernels.cpu.linear import activation
from quire.kernels.cpu.linear import linear_groups as cpu
from quire.kernels.cpu.linear import norm as norms
from quire.kernels.cpu.native import load, runnable_sets
from quire.kernels.cpu.tape import record
from quire.kernels.linear.activation import GATES
from quire.kernels.linear.code_tables import numbers
from quire.kernels.linear.linear_groups import (
    linear_groups,
    linear_groups_reference,
    minima,
    norm_linear_groups,
    norm_linear_groups_reference,
    pack,
    pack_scale,
    plain,
    quantize,
    side,
    unpack_scale,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OFFSETS = ("none", "zeros", "minima", "units", "units, minima")
"""With units, scales and minima are integers."""
TABLES = ("e2m1", "e2m1, f8", "e2m1, powers", "iq4_nl", "iq4_nl, units")
"""What codes of 4 bits stand for, where they have no offset, and what scales are: f8 have units too."""
WAYS = ("int8", "none")
LAYERS = [
    (4, "none", "int8"), (4, "zeros", "int8"), (4, "minima", "none"), (4, "units, minima", "int8"),
    (5, "units, minima", "int8"), (5, "none", "none"), (6, "units", "int8"), (6, "units", "none"),
    (8, "minima", "int8"), (8, "none", "none"), (4, "e2m1, f8", "int8"), (4, "e2m1, f8", "none"),
    (4, "e2m1, powers", "int8"), (4, "iq4_nl, units", "int8"), (4, "iq4_nl", "none"),
]  # fmt: skip
"""Bits, offset and activations: each way to multiply codes, and each offset."""


@pytest.fixture(params=runnable_sets())
def instruction_set(request, monkeypatch):
    for module in (cpu, activation, norms):
        monkeypatch.setattr(module, "native", lambda: load(request.param))
    return request.param


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(a, b):
    """Bit for bit, NaN included."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


class Layer:
    """A weight of random codes, scales and offsets behind one pair of calls."""

    def __init__(self, outputs, groups, size, layer, seed=0, stored=torch.float16):
        self.bits, offset, self.way = layer
        self.table = offset.partition(",")[0] if offset in TABLES else ""
        generator, inputs = torch.Generator().manual_seed(seed), groups * size
        self.codes = torch.randint(0, 2**self.bits, (outputs, inputs), generator=generator).to(torch.uint8)
        self.packed = pack(self.codes, self.bits)
        scale, least = random(outputs, groups, seed=seed + 1) / 2**self.bits, random(outputs, groups, seed=seed + 2)
        zeros = torch.randint(0, 2**self.bits, (outputs, groups), generator=generator).to(torch.uint8)
        self.unit = None
        if "units" in offset:
            units = torch.tensor([[[0.3 / 2**self.bits]], [[0.3]]]).expand(2, outputs, 2 - groups % 2)
            scale, least = (torch.randint(-9, 10, (outputs, groups), generator=generator).to(torch.int8) for _ in "01")
            units = (units * random(*units.shape, seed=seed + 3).exp()).half()[: 2 if "minima" in offset else 1]
            self.unit = torch.stack([pack_scale(one) for one in units])
        elif offset == "e2m1, f8":
            self.unit = torch.stack([pack_scale(random(outputs, 1, seed=seed + 3).exp() / 4096)])
            scale = torch.randint(0, 127, (outputs, groups), generator=generator).to(torch.uint8)
            scale = scale.view(torch.float8_e4m3fn)
        elif offset == "e2m1, powers":
            scale = torch.randint(100, 124, (outputs, groups), generator=generator).to(torch.uint8)
            scale = scale.view(torch.float8_e8m0fnu)
        else:
            scale, least = scale.to(stored), least.to(stored)
        of = zeros if offset == "zeros" else least if "minima" in offset else None
        self.scale, self.offset = pack_scale(scale), None if of is None else pack_scale(of)

    @property
    def how(self):
        return self.bits, self.way, self.unit, self.table

    def __call__(self, x, bias=None):
        return linear_groups(x, self.packed, self.scale, self.offset, bias, *self.how)

    def normed(self, x, residual, gain, bias=None, gate=None, eps=1e-5):
        weight = (self.packed, self.scale, self.offset, bias)
        return norm_linear_groups(x, residual, gain, eps, *weight, gate, *self.how)

    def exact(self, x, bias=None):
        """The product in float64 of what the rows are rounded to, and what its terms come to at most."""
        size = self.codes.shape[1] // self.scale.shape[1]
        scale, offset = plain(self.scale, self.offset, self.unit)
        least = torch.zeros_like(scale).float() if self.table else minima(scale, offset, self.bits)
        least, rows = least.double().repeat_interleave(size, 1), x.double()
        scaled = numbers(self.codes, self.table).double() * scale.double().repeat_interleave(size, 1)
        if self.way == "int8":
            integers, step = quantize(x)
            rows = (integers.double() * step.double()[..., None]).flatten(1)
        bias = torch.zeros(len(scale)).double() if bias is None else bias.double()
        return rows @ (scaled - least).T + bias, rows.abs() @ (scaled.abs() + least.abs()).T + bias.abs()


# ---- the product ----


@settings(deadline=None, derandomize=True, max_examples=120)
@given(
    rows=st.integers(0, 40),
    outputs=st.integers(1, 150),
    shape=st.sampled_from([(6, 16), (1, 32), (9, 32), (34, 32), (5, 64), (3, 96), (3, 128), (1, 2336)]),
    layer=st.tuples(st.sampled_from([4, 5, 6, 8]), st.sampled_from(OFFSETS), st.sampled_from(WAYS))
    | st.tuples(st.just(4), st.sampled_from(TABLES), st.sampled_from(WAYS)),
    stored=st.sampled_from(DTYPES),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_instruction_set_gives_the_product(rows, outputs, shape, layer, stored, dtype, has_bias, seed):
    groups, size = shape[0], shape[1] if layer[1] in TABLES else max(shape[1], side(layer[0], shape[1] * 2))
    x, bias = random(rows, groups * size, seed=seed, dtype=dtype), random(outputs, seed=seed, dtype=dtype)
    case = Layer(outputs, groups, size, layer, seed, stored)
    exact, terms = case.exact(x, bias if has_bias else None)
    for name in runnable_sets():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cpu, "native", lambda name=name: load(name))
            out = case(x, bias if has_bias else None)
        assert (out.dtype, out.shape) == (dtype, (rows, outputs))
        # sums are float32 everywhere: what is left is one rounding of the result
        bound = 2e-6 * terms + torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
        assert ((out.double() - exact).abs() <= bound).all(), name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_every_code_of_every_input_is_read_where_it_lies(instruction_set, rows, bits, way):
    # inputs are unit vectors: each result is a weight
    case = Layer(70, 2, 64, (bits, "zeros", way), stored=torch.float32)
    case.scale = torch.ones(70, 2)
    codes, zeros = case.codes.float(), unpack_scale(case.offset).float().repeat_interleave(64, 1)
    for start in range(0, 128, rows):
        x = torch.eye(128)[start : start + rows] * 127
        assert torch.equal(case(x), (codes - zeros).T[start : start + rows] * 127)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", ["e2m1", "iq4_nl"])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_every_code_stands_for_its_number_in_the_table(instruction_set, rows, table, way):
    case = Layer(70, 8, 16, (4, table, way), stored=torch.float16)
    weight = numbers(case.codes, table) * unpack_scale(case.scale).float().repeat_interleave(16, 1)
    for start in range(0, 128, rows):
        x = torch.eye(128)[start : start + rows] * 127
        assert torch.equal(case(x), weight.T[start : start + rows] * 127)


@pytest.mark.parametrize("code", range(0, 256, 15))
def test_scales_of_a_byte_are_the_numbers_that_torch_takes_them_for(instruction_set, code):
    stored = torch.full((20, 2), code, dtype=torch.uint8)
    powers, floats = stored.view(torch.float8_e8m0fnu), stored.view(torch.float8_e4m3fn)
    packed, x = pack(torch.full((20, 64), 2, dtype=torch.uint8), 4), torch.eye(64)[:1]
    out = linear_groups(x, packed, powers, None, None, 4, "none", None, "e2m1")
    torch.testing.assert_close(out, powers.float()[:1, 0].expand(1, 20), rtol=0, atol=0, equal_nan=True)
    unit = torch.full((1, 20, 1), 0.1)
    out = linear_groups(x, packed, floats, None, None, 4, "none", unit, "e2m1")
    torch.testing.assert_close(out, (floats.float()[:1, 0] * 0.1).expand(1, 20), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [32, 64])
def test_activations_become_the_integers_of_the_reference(instruction_set, dtype, size):
    # the weight is the identity, so what comes out are the integers times their scale
    edges = torch.cat((torch.arange(-127.5, 128, 1), torch.linspace(-127, 127, 200), torch.logspace(-30, 4, 200)))
    x = torch.cat((edges, torch.zeros(32), torch.full((32,), 1e-38), torch.tensor([127.0])))
    x = torch.nn.functional.pad(x, (0, -len(x) % 64))[None].to(dtype)
    x = torch.cat((x, random(40, x.shape[1], dtype=dtype) * torch.logspace(-4, 3, 40)[:, None].to(dtype)))
    inputs = x.shape[1]
    codes, scale = torch.eye(inputs).to(torch.uint8) + 128, pack_scale(torch.ones(inputs, inputs // size))
    integers, step = quantize(x)
    out = linear_groups(x, pack(codes, 8), scale, None, None, 8, "int8")
    assert torch.equal(out, (integers * step[..., None]).flatten(1).to(dtype))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [32, 64, 2336])
def test_a_row_does_not_depend_on_its_neighbours_or_on_the_threads(instruction_set, layer, dtype, size):
    groups = max(1, 640 // size)
    inputs = groups * size
    case, gain = Layer(192, groups, size, layer), random(inputs, seed=2, dtype=dtype)
    x = (random(300, inputs) * torch.logspace(-3, 3, 300)[:, None]).to(dtype)
    residual = random(300, inputs, seed=3, dtype=dtype)
    threads = torch.get_num_threads()
    alone = torch.cat([case(row[None]) for row in x])
    pairs = zip(x, residual, strict=True)
    alone_normed = torch.cat([case.normed(a[None], b[None], gain, gate="silu")[0] for a, b in pairs])
    try:
        for count, used in itertools.product((300, 25, 24, 13, 9, 7, 2), (1, 2)):
            torch.set_num_threads(used)
            assert same(case(x[:count]), alone[:count])
            assert same(case.normed(x[:count], residual[:count], gain, gate="silu")[0], alone_normed[:count])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_is_not_finite_spoils_no_other_row(instruction_set, layer, dtype, bad):
    case, x, gain = Layer(32, 3, 64, layer), random(20, 192, dtype=dtype), random(192, seed=2, dtype=dtype)
    rest = [row for row in range(20) if row != 11]
    for run in (case, lambda x: case.normed(x, None, gain, gate="gelu")[0]):
        clean = run(x)
        spoilt = x.clone()
        spoilt[11, 150] = bad
        out = run(spoilt)
        assert not out[11].isfinite().any()
        assert layer[2] == "none" or out[11].isnan().all()
        assert same(out[rest], clean[rest])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rows", [1, 30])
def test_rows_of_zeros_and_zero_scales_give_the_bias(instruction_set, layer, rows):
    case, bias = Layer(37, 3, 64, layer), random(37)
    assert torch.equal(case(torch.zeros(rows, 192), bias), bias.expand(rows, 37))
    case.scale.zero_()
    if "minima" in layer[1]:
        case.offset.zero_()
    assert torch.equal(case(random(rows, 192), bias), bias.expand(rows, 37))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rows", [1, 30])
def test_a_scale_that_is_none_spoils_its_output_alone(instruction_set, layer, rows):
    case, x = Layer(37, 3, 64, layer), random(rows, 192)
    sound, stored = case(x), case.scale if case.unit is None else case.unit[0]
    scale = unpack_scale(stored)
    scale[35, -1] = torch.nan
    stored.copy_(pack_scale(scale))
    out = case(x)
    rest = [column for column in range(37) if column != 35]
    assert out[:, 35].isnan().all()
    assert torch.equal(out[:, rest], sound[:, rest])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("bits", "code"), [(4, 0), (4, 15), (5, 0), (5, 31), (6, 0), (6, 63), (8, 0), (8, 255)])
@pytest.mark.parametrize("rows", [1, 30])
def test_sums_of_the_smallest_and_largest_codes_are_exact(instruction_set, rows, bits, code, way):
    case = Layer(37, 1, 4096, (bits, "none", way))
    case.packed, case.scale = pack(torch.full_like(case.codes, code), bits), torch.ones(37, 1)
    value = 127.0 if way == "int8" else 128.0  # float32 holds every sum of these
    expected = torch.full((rows, 37), value * 4096 * (code - 2 ** (bits - 1)))
    assert torch.equal(case(torch.full((rows, 4096), value)), expected)
    assert torch.equal(case(torch.full((rows, 4096), -value)), -expected)


# ---- with norm and activation ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("outputs", "gate"), [(64, None), *itertools.product((64,), GATES), (48, "silu"), (70, "silu")]
)
def test_norm_and_activation_joined_with_the_product_equal_the_three_apart(
    instruction_set, dtype, gate, layer, outputs
):
    x, residual = random(15, 192, dtype=dtype), random(15, 192, seed=1, dtype=dtype)
    gain, bias = random(192, seed=2, dtype=dtype), random(outputs, seed=3, dtype=dtype)
    case = Layer(outputs, 3, 64, layer, 4)
    for other in (None, residual):
        normed, expected_total = (
            (norms.rms_norm(x, gain, 1e-5), x) if other is None else norms.add_rms_norm(x, other, gain, 1e-5)
        )
        wide = case(normed, bias)
        out, total = case.normed(x, other, gain, bias, gate)
        assert same(total, expected_total)
        assert same(out, wide if gate is None else activation.gated_activation(wide, gate))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_references_agree_up_to_the_rounding_of_activations(instruction_set, layer):
    x, residual, gain = random(9, 256), random(9, 256, seed=1), random(256, seed=2)
    case = Layer(64, 2, 128, layer, 3)
    out, total = case.normed(x, residual, gain, gate="gelu_tanh")
    weight = (case.packed, case.scale, case.offset, None)
    expected, expected_total = norm_linear_groups_reference(x, residual, gain, 1e-5, *weight, "gelu_tanh", *case.how)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(out, expected, rtol=0.01, atol=0.01 * float(expected.abs().max()))


# ---- on a tape ----


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_a_tape_gives_what_calls_give(layer, dtype):
    up, down = Layer(256, 2, 64, layer), Layer(128, 4, 32, layer, 7)
    gain, x = random(128, dtype=dtype), torch.full((24, 128), torch.nan, dtype=dtype)

    def step(x):
        gated, total = up.normed(x, None, gain, gate="silu")
        return down.normed(down(gated), total, gain)[0]

    tape = record(lambda: step(x), 24, 1)
    assert len(tape) == 3
    for seed, count in enumerate((24, 1, 7)):
        x.copy_(random(24, 128, seed=seed, dtype=dtype))
        assert same(tape.replay(count, 1), step(x[:count]))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_form_is_chosen_by_the_device_and_keeps_the_references_result(layer):
    case, x = Layer(40, 3, 96, layer), random(5, 288)
    expected = linear_groups_reference(x, case.packed, case.scale, case.offset, None, *case.how)
    torch.testing.assert_close(case(x), expected, rtol=1e-5, atol=1e-4)
