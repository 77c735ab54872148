"""Linear layers on 8-bit floats: the compiled form for every instruction set here against the references."""

import hypothesis.strategies as st
import pytest
import torch
from coded_layers import DTYPES, F8_BLOCKS, F8_ROWS, coded_layer, random, random_f8, same
from hypothesis import given, settings

from quire.kernels.cpu.linear import linear_f8 as cpu
from quire.kernels.cpu.native import load, runnable_sets
from quire.kernels.linear.linear_f8 import linear_f8, pack, pack_f8_reference, quantize, unpack
from quire.kernels.linear.linear_f8_blocks import linear_f8_blocks

pytestmark = pytest.mark.sampled(40)

FORMS = [*F8_ROWS, *F8_BLOCKS]
CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 64), (17, 5), (50, 131), (800, 300)])
def test_packing_gives_what_the_reference_gives(instruction_set, outputs, inputs):
    codes = random_f8(outputs, inputs)
    assert same(pack(codes), pack_f8_reference(codes))
    assert same(unpack(pack(codes), outputs, inputs), codes)
    raw = codes.view(torch.uint8)
    raw[outputs - 1, inputs - 1], raw[0, inputs // 2] = 0x7F, 0xFF
    assert same(pack(codes), pack_f8_reference(codes))


# ---- the product ----


@settings(max_examples=40)
@given(
    rows=st.integers(0, 40),
    inputs=st.integers(1, 400),
    outputs=st.integers(1, 150),
    form=st.sampled_from(FORMS),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_instruction_set_gives_the_product(rows, inputs, outputs, form, dtype, has_bias, seed):
    outputs = -(-outputs // 16) * 16 if form in F8_BLOCKS else outputs
    x, bias = random(rows, inputs, seed=seed, dtype=dtype), random(outputs, seed=seed, dtype=dtype)
    case = coded_layer(form, outputs, inputs, seed)
    exact, size = case.exact(x, bias if has_bias else None)
    for name in runnable_sets():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cpu, "native", lambda name=name: load(name))
            out = case(x, bias if has_bias else None)
        assert (out.dtype, out.shape) == (dtype, (rows, outputs))
        # sums are float32 everywhere: what is left is one rounding of the result
        bound = 1e-5 * size + torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
        assert ((out.double() - exact).abs() <= bound).all(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 30])
def test_every_code_of_a_weight_is_decoded_exactly(instruction_set, dtype, rows):
    # inputs are unit vectors: each result is a weight; NaN comes out of its output and nowhere else
    finite = CODES[~CODES.float().isnan()]
    codes = finite.repeat(32).view(32, 254)[:, torch.randperm(254, generator=torch.Generator().manual_seed(0))]
    packed, ones = pack(codes), torch.ones(32)
    for start in range(0, 254, rows):
        x = torch.eye(254, dtype=dtype)[start : start + rows]
        expected = codes.T[start : start + rows].to(dtype)
        assert torch.equal(linear_f8(x, packed, ones, None, "none", None), expected)
        assert torch.equal(linear_f8_blocks(x, packed, torch.ones(1, 2), None, "none"), expected)
        assert torch.equal(linear_f8(x, packed, ones, None, "static", torch.ones(1)), expected)


@pytest.mark.parametrize("nan", [0x7F, 0xFF])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 30])
def test_a_code_that_is_none_spoils_its_output_alone(instruction_set, nan, form, rows):
    case, x = coded_layer(form, 48, 130), random(rows, 130)
    sound = case(x)
    case.codes.view(torch.uint8)[17, 129] = nan
    case.put(0, pack(case.codes))
    out = case(x)
    assert out[:, 17].isnan().all()
    rest = [column for column in range(48) if column != 17]
    assert torch.equal(out[:, rest], sound[:, rest])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["token", "static"])
def test_activations_become_the_codes_of_the_reference(instruction_set, dtype, way):
    # the weight is the identity, so what comes out are the codes times their scale
    edges = torch.cat((CODES.float().nan_to_num(), torch.linspace(-600, 600, 200), torch.logspace(-6, 3, 200)))
    halves = (CODES[:126].float() + CODES[1:127].float()) / 2
    x = torch.cat((edges, halves, -halves, torch.tensor([448.0, 464, 465, 1e4])))[None].to(dtype)
    x = torch.cat((x, random(40, x.shape[1], dtype=dtype) * torch.logspace(-4, 3, 40)[:, None].to(dtype)))
    eye = torch.eye(x.shape[1]).to(torch.float8_e4m3fn)
    given_scale = torch.ones(1) if way == "static" else None
    codes, scale = quantize(x, given_scale)
    out = linear_f8(x, pack(eye), torch.ones(x.shape[1]), None, way, given_scale)
    assert torch.equal(out, (codes.float() * scale[:, None]).to(dtype))


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_the_largest_codes_are_exact(instruction_set, form):
    case = coded_layer(form, 16, 4096)
    case.put(0, pack(torch.full((16, 4096), 448.0).to(torch.float8_e4m3fn)))
    case.scale.fill_(1)
    if "static" in form:
        case.how[1].fill_(1)
    assert torch.equal(case(torch.full((3, 4096), 448.0)), torch.full((3, 16), 448.0 * 448.0 * 4096))
