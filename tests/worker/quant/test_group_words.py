"""Groups of codes as GPUs keep them, on the host: products by the weights that are meant, alone and normed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from meant import GROUPS, meant

from quire.kernels.linear.activation import gated_activation_reference
from quire.kernels.linear.norm import residual_norm_reference
from quire.worker.layers.linear import Linear
from quire.worker.quant.group_words import GroupWordsScheme


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
