"""Linear layers on groups of codes: the compiled form for every instruction set here against the product in float64."""

import itertools

import hypothesis.strategies as st
import pytest
import torch
from coded_layers import DTYPES, GROUPS, OFFSETS, TABLES, Groups, coded_layer, random
from hypothesis import given, settings

from quire.kernels.cpu.linear import linear_groups as cpu
from quire.kernels.cpu.native import load, runnable_sets
from quire.kernels.linear.code_tables import numbers
from quire.kernels.linear.linear_groups import linear_groups, pack, pack_scale, quantize, side, unpack_scale

pytestmark = pytest.mark.sampled(40)

WAYS = ("int8", "none")


@settings(max_examples=120)
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
    case = Groups(outputs, groups * size, seed, layer, size, stored)
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
    case = Groups(70, 128, 0, (bits, "zeros", way), stored=torch.float32)
    case.put(1, torch.ones(70, 2))
    codes, zeros = case.codes.float(), unpack_scale(case.offset).float().repeat_interleave(64, 1)
    for start in range(0, 128, rows):
        x = torch.eye(128)[start : start + rows] * 127
        assert torch.equal(case(x), (codes - zeros).T[start : start + rows] * 127)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", ["e2m1", "iq4_nl"])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_every_code_stands_for_its_number_in_the_table(instruction_set, rows, table, way):
    case = Groups(70, 128, 0, (4, table, way), 16)
    weight = numbers(case.codes, table) * unpack_scale(case.scale).float().repeat_interleave(16, 1)
    for start in range(0, 128, rows):
        x = torch.eye(128)[start : start + rows] * 127
        assert torch.equal(case(x), weight.T[start : start + rows] * 127)


def test_scales_of_a_byte_are_the_numbers_that_torch_takes_them_for(instruction_set):
    packed, x = pack(torch.full((20, 64), 2, dtype=torch.uint8), 4), torch.eye(64)[:1]
    unit, exactly = torch.full((1, 20, 1), 0.1), {"rtol": 0, "atol": 0, "equal_nan": True}
    for code in range(0, 256, 15):
        stored = torch.full((20, 2), code, dtype=torch.uint8)
        powers, floats = stored.view(torch.float8_e8m0fnu), stored.view(torch.float8_e4m3fn)
        out = linear_groups(x, packed, powers, None, None, 4, "none", None, "e2m1")
        torch.testing.assert_close(out, powers.float()[:1, 0].expand(1, 20), **exactly)
        out = linear_groups(x, packed, floats, None, None, 4, "none", unit, "e2m1")
        torch.testing.assert_close(out, (floats.float()[:1, 0] * 0.1).expand(1, 20), **exactly)


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


@pytest.mark.parametrize("form", GROUPS)
def test_a_scale_that_is_none_spoils_its_output_alone(instruction_set, form):
    case, inputs = coded_layer(form, 37, 192), (random(1, 192), random(30, 192))
    sound, stored = [case(x) for x in inputs], case.scale if case.unit is None else case.unit[0]
    scale = unpack_scale(stored)
    scale[35, -1] = torch.nan
    stored.copy_(pack_scale(scale))
    rest = [column for column in range(37) if column != 35]
    for x, clean in zip(inputs, sound, strict=True):
        out = case(x)
        assert out[:, 35].isnan().all()
        assert torch.equal(out[:, rest], clean[:, rest])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_sums_of_the_smallest_and_largest_codes_are_exact(instruction_set, bits, way):
    case = Groups(37, 4096, 0, (bits, "none", way), 4096)
    case.put(1, torch.ones(37, 1))
    value = 127.0 if way == "int8" else 128.0  # float32 holds every sum of these
    for code, rows in itertools.product((0, 2**bits - 1), (1, 30)):
        case.put(0, pack(torch.full_like(case.codes, code), bits))
        expected = torch.full((rows, 37), value * 4096 * (code - 2 ** (bits - 1)))
        assert torch.equal(case(torch.full((rows, 4096), value)), expected), (code, rows)
        assert torch.equal(case(torch.full((rows, 4096), -value)), -expected), (code, rows)
