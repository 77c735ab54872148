"""Schemes: what they keep of a weight, and that every layer computes the same before and after."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from filled import CPU, HIDDEN, AsLoaded, filled, loaded_weight, num_bytes, values
from held import Held

from quire.kernels.linear.activation import gated_activation
from quire.kernels.linear.linear_f8 import F8, linear_f8, linear_f8_reference
from quire.kernels.linear.linear_f8 import pack as pack_f8
from quire.kernels.linear.linear_f8 import quantize as quantize_f8
from quire.kernels.linear.linear_f8_blocks import linear_f8_blocks
from quire.kernels.linear.linear_group_words import linear_group_words
from quire.kernels.linear.linear_groups import unpack as unpack_groups
from quire.kernels.linear.linear_groups import unpack_scale
from quire.kernels.linear.linear_int8 import MOST_INPUTS, linear_int8, linear_int8_reference, quantize
from quire.kernels.linear.pack import unpack
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import ColumnLinear, MergedLinear, QKVLinear, RowLinear
from quire.worker.layers.norm import RMSNorm
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.f8_blocks import F8BlocksScheme
from quire.worker.quant.f8_rows import F8RowsScheme
from quire.worker.quant.form import SERVED, F8Blocks, F8Rows, Groups, Int8Rows
from quire.worker.quant.group_words import GroupWordsScheme
from quire.worker.quant.groups import GroupsScheme
from quire.worker.quant.groups import quantized as quantized_groups
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.plan import NO_PLAN, Plan
from quire.worker.quant.scheme import everywhere
from quire.worker.quant.select import kept_activations, schemes_of
from quire.worker.weights.dummy import SAME_NAMES
from quire.worker.weights.load import fill
from quire.worker.weights.parts import ModelError

LAYERS = {
    "column": lambda c: ColumnLinear(c, HIDDEN, 20, "size", bias=True),
    "merged": lambda c: MergedLinear(c, HIDDEN, 32, ("gate", "up"), "size"),
    "qkv": lambda c: QKVLinear(c, HIDDEN, 4, 2, 8, bias=True),
    "row": lambda c: RowLinear(c, HIDDEN, 30, "size", bias=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_dense_layers_compute_the_same_before_and_after_they_are_finished(name):
    layer, x = filled(LAYERS[name], DenseScheme()), values(5, HIDDEN)
    weight = loaded_weight(LAYERS[name])
    torch.testing.assert_close(layer(x, None), linear(x, weight, layer.bias))
    assert torch.equal(unpack(layer.weight), weight)
    assert num_bytes(layer) == num_bytes(filled(LAYERS[name], AsLoaded()))


@pytest.mark.parametrize("name", LAYERS)
def test_int8_layers_keep_a_byte_for_a_weight_and_quantize_each_row_and_output(name):
    layer, x = filled(LAYERS[name], Int8Scheme()), values(5, HIDDEN)
    weight, bias = loaded_weight(LAYERS[name]), layer.bias
    assert {key for key, _ in layer.named_parameters()} - {"bias"} == {"packed", "scale"}
    blocks = -(-weight.shape[0] // 16)
    assert num_bytes(layer) == blocks * 16 * HIDDEN + 4 * weight.shape[0] + (0 if bias is None else bias.nbytes)
    expected = linear_int8_reference(x, layer.packed, layer.scale, bias)
    torch.testing.assert_close(layer(x, None), expected, rtol=1e-6, atol=1e-6)
    step = quantize(x)[1][:, None] * weight.abs().sum(1) / 2 + layer.scale * x.abs().sum(1, keepdim=True)
    assert ((layer(x, None) - linear(x, weight, bias)).abs() <= step).all()


def f8_rows():
    return F8RowsScheme("token", None, stored=False)


@pytest.mark.parametrize("name", LAYERS)
def test_f8_layers_keep_a_byte_for_a_weight_and_quantize_each_row_and_output(name):
    layer, x = filled(LAYERS[name], f8_rows()), values(5, HIDDEN)
    weight, bias = loaded_weight(LAYERS[name]), layer.bias
    codes, scale = quantize_f8(weight, None)
    assert {key for key, _ in layer.named_parameters()} - {"bias"} == {"packed", "scale"}
    assert layer.packed.dtype == codes.dtype
    assert torch.equal(layer.scale, scale)
    torch.testing.assert_close(layer(x, None), linear_f8_reference(x, pack_f8(codes), scale, bias, "token", None))
    rounded = codes.float() * scale[:, None]
    step = (x.abs() @ rounded.abs().T + x.abs() @ weight.abs().T) / 16
    assert ((layer(x, None) - linear(x, weight, bias)).abs() <= step + 1e-5).all()


GROUPED = {
    "column": lambda c: ColumnLinear(c, 64, 20, "size", bias=True),
    "merged": lambda c: MergedLinear(c, 64, 32, ("gate", "up"), "size"),
    "row": lambda c: RowLinear(c, 64, 30, "size", bias=True),
}


@pytest.mark.parametrize("size", [32, 64, None])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_keep_half_a_byte_for_a_weight_and_round_it_to_the_nearest_code(name, size):
    form = Groups(4, size, "zeros", "none", "bfloat16", stored=False)
    layer, x = filled(GROUPED[name], GroupsScheme(form)), values(5, 64)
    weight, bias = loaded_weight(GROUPED[name]), layer.bias
    assert {key for key, _ in layer.named_parameters()} - {"bias"} == {"packed", "scale", "offset"}
    outputs, groups = weight.shape[0], 64 // (size or 64)
    bytes_of_bias = 0 if bias is None else bias.nbytes
    assert num_bytes(layer) - bytes_of_bias == -(-outputs // 16) * 16 * 32 + 3 * outputs * groups
    assert form.num_bytes(outputs, 64) == outputs * 32 + 3 * outputs * groups
    scale, zeros = (unpack_scale(one).float()[..., None] for one in (layer.scale, layer.offset))
    codes = unpack_groups(layer.packed, 4, outputs, 64).view(outputs, groups, -1).float()
    meant = ((codes - zeros) * scale).flatten(1)
    assert ((meant - weight).abs().view(outputs, groups, -1) <= scale * 0.57).all()  # a scale is rounded, too
    torch.testing.assert_close(layer(x, None), linear(x, meant, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("bits", "offset", "superblock"),
    [
        *((bits, offset, None) for bits in (4, 5, 6, 8) for offset in ("none", "zeros", "minima")),
        *((bits, offset, 64) for bits in (4, 5, 6) for offset in ("none", "minima")),
    ],
)
def test_dummy_codes_lie_about_the_middle_of_their_range_whatever_the_offset(bits, offset, superblock):
    form = Groups(bits, 32, offset, "none", "float16", superblock=superblock)
    layer = filled(GROUPED["merged"], GroupsScheme(form))
    weight = layer(torch.eye(64), None).T
    assert weight.mean().abs() < 0.02
    assert 0.05 < weight.std() < 0.2
    assert form.num_bytes(64, 64) == num_bytes(layer)


def test_a_group_of_zeros_stays_zero_and_one_that_is_no_number_shows():
    weight = torch.zeros(3, 64)
    weight[1, 40], weight[2, 3] = torch.nan, 1e-30
    codes, scale, zeros = quantized_groups(weight, Groups(4, 32, "zeros", scale="bfloat16"))
    meant = (codes.view(3, 2, 32).float() - zeros.float()[..., None]) * scale.float()[..., None]
    assert (meant[0] == 0).all()
    assert meant.isfinite().all(2).tolist() == [[True, True], [True, False], [True, True]]
    assert meant[2, 0, 3].item() == pytest.approx(1e-30, rel=0.01)


def test_activations_beyond_a_bound_are_taken_for_the_bound():
    bounded, free = (filled(LAYERS["column"], F8RowsScheme("token", bound, stored=False)) for bound in (0.5, None))
    norm, x = filled(lambda c: RMSNorm(c, HIDDEN, 1e-5), DenseScheme()), values(5, HIDDEN)
    assert x.abs().max() > 0.5
    assert torch.equal(bounded(x, None), free(x.clamp(-0.5, 0.5), None))
    assert torch.equal(bounded.normed(x, None, norm, None)[0], free(norm(x).clamp(-0.5, 0.5), None))


class Rank(SingleGroup):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda c: ColumnLinear(c, 128, 384, "size"),
            "0..192 of 384 would be one rank's, but the checkpoint stores 128",
        ),
        (lambda c: RowLinear(c, 384, 128, "size"), "0..192 of 384 would be one rank's, but the checkpoint stores 128"),
        (lambda c: QKVLinear(c, 128, 2, 2, 64), "0..64 of 128 would be one rank's, but the checkpoint stores 128"),
        (lambda c: ColumnLinear(c, 128, 40, "size"), "want a multiple of 16 outputs, a layer has 20 on a rank"),
    ],
)
def test_ranks_that_would_divide_a_block_are_refused_with_both_numbers(build, said):
    context = BuildContext(Rank(0, 2), CPU, torch.float32, everywhere(F8BlocksScheme("token")))
    with pytest.raises(ModelError, match=re.escape(said)):
        build(context)


@pytest.mark.parametrize(
    ("form", "size", "said"),
    [
        (
            Groups(4, 32, "minima", superblock=256),
            32,
            "16..32 of 512 would be one rank's, but the checkpoint stores 32",
        ),
        (Groups(6, 16, superblock=256), 32, "16..32 of 512 would be one rank's, but a product takes 32 at a time"),
        (Groups(4, None), 32, "16..32 of 512 would be one rank's, but a product takes 32 at a time"),
        (Groups(4, 128), 8, "64..128 of 512 would be one rank's, but the checkpoint stores 128 at a time"),
    ],
)
def test_ranks_that_would_divide_a_group_or_a_step_are_refused_with_both_numbers(form, size, said):
    context = BuildContext(Rank(1, size), CPU, torch.float32, everywhere(GroupsScheme(form)))
    with pytest.raises(ModelError, match=re.escape(said)):
        RowLinear(context, 512, 32, "size")


@pytest.mark.parametrize(("outputs", "is_joined"), [(256, True), (192, False)])
def test_parts_share_a_product_where_their_blocks_of_128_lie_one_after_another(outputs, is_joined):
    context = BuildContext(SingleGroup(), CPU, torch.float32, everywhere(F8BlocksScheme("token")))
    layer = MergedLinear(context, 144, outputs, ("gate", "up"), "size")
    assert isinstance(layer.scheme, F8BlocksScheme) == is_joined
    generator = torch.Generator().manual_seed(3)
    stored = {}
    for name in ("gate", "up"):
        codes = torch.randn((outputs, 144), generator=generator).to(F8)
        stored[name] = {"weight": codes, "scale": torch.rand((-(-outputs // 128), 2), generator=generator)}
    fill(layer, Held(stored), SAME_NAMES, CPU)
    x = values(3, 144)
    each = [linear_f8_blocks(x, pack_f8(one["weight"]), one["scale"], None, "token") for one in stored.values()]
    torch.testing.assert_close(layer(x, None), torch.cat(each, 1))


def of_groups():
    return GroupsScheme(Groups(4, None, "zeros", "int8", "bfloat16", stored=False))


@pytest.mark.parametrize("scheme", [DenseScheme, Int8Scheme, f8_rows, of_groups])
@pytest.mark.parametrize("gate", [None, "silu"])
def test_a_layer_with_a_norm_before_it_is_the_norm_and_the_layer(scheme, gate):
    layer, x, residual = filled(GROUPED["merged"], scheme()), values(5, 64), values(5, 64) * 2
    norm = filled(lambda c: RMSNorm(c, 64, 1e-5), scheme())
    for other in (None, residual):
        out, total = layer.normed(x, other, norm, None, gate)
        assert torch.equal(total, x if other is None else residual + x)
        wide = layer(norm(total), None)
        if gate is not None:
            left, right = wide.chunk(2, dim=1)
            wide = torch.nn.functional.silu(left) * right
        torch.testing.assert_close(out, wide)


JOINING = {
    "int8": (Int8Scheme(), True),
    "f8 rows": (F8RowsScheme("token", None, stored=False), True),
    "f8 rows, scales of the checkpoint": (F8RowsScheme("static", None, stored=False), True),
    "f8 rows, a bound": (F8RowsScheme("token", 0.5, stored=False), False),
    "f8 rows, weights alone": (F8RowsScheme("none", None, stored=False), False),
    "f8 blocks": (F8BlocksScheme("token"), True),
    "f8 blocks, weights alone": (F8BlocksScheme("none"), False),
    "dense": (DenseScheme(), False),
    "groups": (of_groups(), False),
}


@pytest.mark.parametrize("name", JOINING)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_a_layer_with_a_gate_before_it_is_the_gate_and_the_layer(name, kind):
    """Where the gate joins what a GPU does to the inputs, the layer is asked for both."""
    scheme, joins = JOINING[name]
    assert (scheme.joins_gate("cuda"), scheme.joins_gate("cpu")) == (joins, False)
    layer, wide = filled(lambda c: RowLinear(c, 64, 32, "size", bias=True), scheme), 3 * values(5, 128)
    torch.testing.assert_close(layer.gated(wide, kind, None), layer(gated_activation(wide, kind), None))


def test_inputs_that_a_form_has_no_product_for_are_refused_with_the_number():
    meta = BuildContext(SingleGroup(), torch.device("meta"), torch.float32, everywhere(Int8Scheme()))
    with torch.device("meta"), pytest.raises(ModelError, match=rf"^quantization: int8 sums at most {MOST_INPUTS} "):
        RowLinear(meta, MOST_INPUTS + 1, 1, "size")
    groups = BuildContext(SingleGroup(), CPU, torch.float32, everywhere(GroupsScheme(Groups(8, 32))))
    with pytest.raises(ModelError, match=r"has 48 inputs on a rank, which are no multiple of 32; use another"):
        RowLinear(groups, 48, 16, "size")


def test_a_quantization_has_a_scheme_where_the_device_has_a_fast_form():
    cuda = torch.device("cuda")
    assert schemes_of(NO_PLAN, CPU)("head") == schemes_of(NO_PLAN, cuda)("head") == DenseScheme()
    for form, scheme, operation in (
        (Int8Rows(stored=False), Int8Scheme(), linear_int8),
        (Int8Rows(), Int8Scheme(stored=True), linear_int8),
        (F8Rows("static"), F8RowsScheme("static", None, stored=True), linear_f8),
        (F8Rows("token", 3.0, stored=False), F8RowsScheme("token", 3.0, stored=False), linear_f8),
        (F8Blocks("none"), F8BlocksScheme("none"), linear_f8_blocks),
        (Groups(4, 128, "zeros"), GroupsScheme(Groups(4, 128, "zeros")), linear_group_words),
        (Groups(8, None), GroupsScheme(Groups(8, None)), linear_group_words),
    ):
        plan = Plan("fp8", {"head": form})
        assert schemes_of(plan, CPU)("head") == scheme
        assert schemes_of(plan, CPU)("blocks.0.mlp.down") == DenseScheme()
        assert form.name in SERVED["cuda"]
        assert operation.has_form("cuda")
        if not isinstance(form, Groups):
            assert schemes_of(plan, cuda)("head") == scheme
    rounded = Groups(8, 32, "minima", "int8")
    plan = Plan("gguf", {"head": rounded})
    assert schemes_of(plan, CPU)("head") == GroupsScheme(rounded)
    assert schemes_of(plan, cuda)("head") == GroupWordsScheme(replace(rounded, activations="none", in_words=True))


def test_an_older_gpu_says_that_it_multiplies_activations_as_they_are():
    for capability, form, says in (
        (80, F8Rows("token"), "compute capability 8.0 has no products of 8-bit floats (8.9 has)"),
        (86, F8Rows("static"), "compute capability 8.6 has no products"),
        (89, F8Rows("token"), ""),
        (80, F8Rows("none"), ""),
        (86, F8Blocks("token"), "compute capability 8.6 has no products"),
        (90, F8Blocks("token"), ""),
        (80, F8Blocks("none"), ""),
        (80, Int8Rows(), ""),
        (None, F8Rows("token"), ""),
    ):
        said = kept_activations(Plan("fp8", {"head": form}), capability)
        assert said.startswith(says)
        assert bool(said) == bool(says)


def test_a_form_without_a_product_on_the_device_is_refused(monkeypatch):
    monkeypatch.setitem(SERVED, "cuda", frozenset({"dense"}))
    plan, cuda = Plan("fp8", {"head": F8Rows()}), torch.device("cuda")
    with pytest.raises(ModelError, match=r"^quantization_config: f8 rows need the CPU backend; choose device cpu"):
        schemes_of(plan, cuda)
    with pytest.raises(ModelError, match=r"^quantization: fp8 needs the CPU backend; choose quantization none"):
        schemes_of(replace(plan, on_the_fly=True), cuda)
