"""Groups of codes as GPUs keep them, on the host: products by the weights that are meant, alone and normed."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from meant import GROUPS, meant

from quire.kernels.linear.activation import gated_activation_reference
from quire.kernels.linear.norm import residual_norm_reference
from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import Linear, MergedLinear, RowLinear
from quire.worker.quant.form import E4M3, Groups
from quire.worker.quant.group_words import GroupWordsScheme
from quire.worker.quant.groups import GroupsScheme
from quire.worker.quant.plan import Plan
from quire.worker.quant.scheme import everywhere
from quire.worker.quant.select import schemes_of
from quire.worker.weights.dummy import SAME_NAMES, DummyWeights
from quire.worker.weights.load import fill

E8M0 = "float8_e8m0fnu"


@pytest.mark.parametrize("name", GROUPS)
def test_layers_multiply_by_the_weights_that_are_meant(made, load_quantized, name):
    model = load_quantized(made / name, served_on="cuda")
    layers = [one for one in model.modules() if isinstance(one, Linear)]
    grouped = [one for one in layers if isinstance(one.scheme, GroupWordsScheme)]
    assert grouped
    for layer in grouped:
        assert layer.scheme.form.activations == "none"
        kept = {key for key, _ in layer.named_parameters()} - {"bias", "offset", "columns"}
        assert kept == {"words", "scale"}
        inputs = 128 if any(layer is block.mlp.down for block in model.blocks) else 64
        x, residual = (torch.randn(5, inputs) for _ in range(2))
        weight, bias = meant(layer, layer.scheme, inputs), 0 if layer.bias is None else layer.bias
        torch.testing.assert_close(layer(x, None), x @ weight.T + bias, rtol=1e-4, atol=1e-4)
        norm_weight = torch.rand(inputs) + 0.5
        out, total = layer.scheme.apply_normed(layer, x, residual, norm_weight, 1e-5, None, "silu")
        normed, added = residual_norm_reference(x, residual, norm_weight, 1e-5)
        assert torch.equal(total, added)
        torch.testing.assert_close(out, gated_activation_reference(normed @ weight.T, "silu"), rtol=1e-4, atol=1e-3)


LAYERS = {
    "merged": lambda c: MergedLinear(c, 64, 32, ("gate", "up"), "size"),
    "row": lambda c: RowLinear(c, 64, 30, "size", bias=True),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("form", [
    Groups(4, 16, scale=E4M3, table="e2m1"),
    Groups(4, 32, scale=E4M3, table="e2m1"),
    Groups(4, 32, scale=E8M0, table="e2m1"),
])  # fmt: skip
def test_layers_of_floats_multiply_as_those_of_processors_do(build, form):
    plain, layer = (filled(build, scheme(form)) for scheme in (GroupsScheme, GroupWordsScheme))
    outputs, has_unit = layer.words.shape[1], form.scale == E4M3
    assert {key for key, _ in layer.named_parameters()} - {"bias", "unit"} == {"words", "scale"}
    assert layer.scale.dtype == getattr(torch, form.scale)
    assert layer.scale.shape == (64 // form.size, outputs)
    assert has_unit == ("unit" in layer._parameters)
    assert not has_unit or (layer.unit.shape, layer.unit.dtype) == ((outputs,), torch.float32)
    numbers = sum(kept.nbytes for name, kept in layer.named_parameters() if name not in ("bias", "words"))
    assert numbers + outputs * 32 == form.num_bytes(outputs, 64)
    x, norm_weight = torch.randn(5, 64), torch.rand(64) + 0.5
    expected = plain(x, None)
    assert expected.abs().min() > 0
    torch.testing.assert_close(layer(x, None), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    gate = "silu" if outputs == 64 else None
    expected, total = plain.scheme.apply_normed(plain, x, x, norm_weight, 1e-5, None, gate)
    out, added = layer.scheme.apply_normed(layer, x, x, norm_weight, 1e-5, None, gate)
    assert torch.equal(added, total)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_activations_beside_groups_stay_as_they_are_on_gpus():
    rounded = Groups(4, 32, activations="int8", scale=E8M0, table="e2m1")
    found = schemes_of(Plan("gguf", {"head": rounded}), torch.device("cuda"))("head")
    assert found == GroupWordsScheme(replace(rounded, activations="none", in_words=True))


@pytest.mark.parametrize("inputs", [32, 128, 384, 896])
@pytest.mark.parametrize(
    "form", [Groups(4, 32), Groups(4, 32, "zeros"), Groups(5, 32, "minima"), Groups(8, 32)], ids=str
)
def test_a_last_line_of_words_that_is_filled_up_is_counted(form, inputs):
    plan = Plan("gptq", {"head": form})
    scheme = schemes_of(plan, torch.device("cuda"))("head")
    layer = filled(lambda context: RowLinear(context, inputs, 24, "size"), scheme)
    assert sum(kept.nbytes for kept in layer.parameters()) == plan.on("cuda").form("head").num_bytes(24, inputs)


class Drawn(DummyWeights):
    """Scales and units that differ, beside the usual codes."""

    def read(self, name, region):
        place = self._places[name]
        if place.name not in ("scale", "unit"):
            return super().read(name, region)
        generator = torch.Generator().manual_seed(sum(name.encode()))
        drawn = torch.rand(place.part.full_shape, generator=generator) * 4 + 0.125
        return drawn.to(place.parameter.dtype)[region]


def filled(build, scheme):
    """A layer of the same codes and scales whatever the scheme, on the host."""
    cpu = torch.device("cpu")
    layer = build(BuildContext(SingleGroup(), cpu, torch.float32, everywhere(scheme)))
    fill(layer, Drawn(layer, 0, cpu), SAME_NAMES, cpu)
    return layer
