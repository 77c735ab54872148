"""Dense and int8: what they keep of a weight, and that every layer computes the same before and after."""

import pytest
import torch
from torch.nn.functional import linear

from quire.kernels.linear.linear_int8 import linear_int8_reference, quantize
from quire.kernels.linear.pack import unpack
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.linear import ColumnLinear, MergedLinear, QKVLinear, RowLinear
from quire.worker.layers.norm import RMSNorm
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.scheme import everywhere
from quire.worker.quant.select import schemes_of
from quire.worker.weights.dummy import fill_dummy
from quire.worker.weights.parts import ModelError

CPU = torch.device("cpu")
HIDDEN = 48


class AsLoaded(DenseScheme):
    """Keeps the weight as it is in the checkpoint."""

    def finish(self, layer):
        pass


def filled(build, scheme):
    """A layer of its own seed's weights."""
    layer = build(BuildContext(SingleGroup(), CPU, torch.float32, everywhere(scheme)))
    fill_dummy(layer, 0, CPU)
    return layer


def loaded_weight(build):
    """The weight that was loaded into such a layer."""
    return filled(build, AsLoaded()).weight


def values(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def num_bytes(module):
    return sum(parameter.nbytes for parameter in module.parameters())


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


@pytest.mark.parametrize("scheme", [DenseScheme, Int8Scheme])
@pytest.mark.parametrize("gate", [None, "silu"])
def test_a_layer_with_a_norm_before_it_is_the_norm_and_the_layer(scheme, gate):
    layer, x, residual = filled(LAYERS["merged"], scheme()), values(5, HIDDEN), values(5, HIDDEN) * 2
    norm = filled(lambda c: RMSNorm(c, HIDDEN, 1e-5), scheme())
    for other in (None, residual):
        out, total = layer.normed(x, other, norm, None, gate)
        assert torch.equal(total, x if other is None else residual + x)
        wide = layer(norm(total), None)
        if gate is not None:
            left, right = wide.chunk(2, dim=1)
            wide = torch.nn.functional.silu(left) * right
        torch.testing.assert_close(out, wide)


@pytest.mark.parametrize("scheme", [DenseScheme, Int8Scheme])
def test_a_tied_vocabulary_looks_up_the_exact_rows_and_multiplies_by_the_scheme(scheme):
    layer = filled(lambda c: Vocabulary(c, 100, HIDDEN), scheme())
    weight, ids, hidden = layer.weight, torch.tensor([99, 0, 7]), values(3, HIDDEN)
    assert torch.equal(weight, loaded_weight(lambda c: Vocabulary(c, 100, HIDDEN)))
    assert torch.equal(layer.embed(ids), weight[ids])
    close = {"rtol": 1e-5, "atol": 1e-5} if scheme is DenseScheme else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(layer.logits(hidden), linear(hidden, weight), **close)
    best, finite = layer.best(hidden)
    assert torch.equal(best, layer.logits(hidden).argmax(1))
    assert finite.all()


@pytest.mark.parametrize(("scheme", "head_bytes"), [(DenseScheme, 4 * 96 * HIDDEN), (Int8Scheme, 96 * (HIDDEN + 4))])
def test_a_vocabulary_stores_no_more_than_its_role_needs(scheme, head_bytes):
    def size(**role):
        return num_bytes(filled(lambda c: Vocabulary(c, 96, HIDDEN, **role), scheme()))

    table = 4 * 96 * HIDDEN
    assert size(multiplied=False) == table
    assert size(looked_up=False) == head_bytes
    assert size() == (table if scheme is DenseScheme else table + head_bytes)  # a tied one is held once


def test_a_quantization_has_a_scheme_where_the_device_has_a_fast_form():
    assert schemes_of("none", CPU)("head") == DenseScheme()
    assert schemes_of("none", torch.device("cuda"))("head") == DenseScheme()
    assert schemes_of("int8", CPU)("head") == Int8Scheme()
    with pytest.raises(ModelError, match="quantization: int8 needs the CPU backend; on cuda choose"):
        schemes_of("int8", torch.device("cuda"))
