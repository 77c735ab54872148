"""GPTQ with inputs in an order of their own, where the checkpoint fuses projections or has the rows of pairs side by
side: the order is that of the inputs, whatever lies along the outputs."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_fp8 import quantize

from quire.worker.weights.header import CheckpointError

SIZE, HALF = 32, 8
STATED = {"quant_method": "gptq", "bits": 4, "group_size": SIZE, "desc_act": True, "sym": True}
QUANTIZED = re.compile(r"(.*_proj)\.weight")


def packed(codes):
    """Eight codes of each column to a word."""
    shifts = torch.arange(0, 32, 4)[:, None]
    return (codes.view(-1, 8, codes.shape[1]).long() << shifts).sum(1).to(torch.int32)


def in_groups(weight):
    """Tensors of a matrix [outputs, inputs] whose inputs' groups are drawn, and the matrix that they mean."""
    outputs, inputs = weight.shape
    index = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs)) // SIZE
    largest = torch.stack([weight[:, index == group].abs().amax(1) for group in range(inputs // SIZE)])
    scales = (largest / (HALF - 1)).half()
    codes = (weight.T / scales.float()[index]).round().add(HALF).clamp(0, 15)
    stored = {
        "qweight": packed(codes),
        "qzeros": packed(torch.full((outputs, inputs // SIZE), HALF - 1)).T.contiguous(),
        "scales": scales,
        "g_idx": index.int(),
    }
    return stored, ((codes - HALF) * scales.float()[index]).T.contiguous()


def both(folder, outside):
    """Copies of a checkpoint: quantized, and of the weights that this means."""
    quantized, meant = outside / "quantized", outside / "meant"
    stored, dense = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = dense[name] = weight
        if (match := QUANTIZED.fullmatch(name)) is not None:
            del stored[name]
            tensors, dense[name] = in_groups(weight)
            stored |= {f"{match[1]}.{part}": tensor for part, tensor in tensors.items()}
    for copy, tensors in ((quantized, stored), (meant, dense)):
        shutil.copytree(folder, copy)
        save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": STATED}))
    return quantized, meant


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("LlamaForCausalLM", {}),
        ("Phi3ForCausalLM", {}),
        ("Glm4ForCausalLM", {}),
        ("CohereForCausalLM", {"num_key_value_heads": 4}),
    ],
)
def test_projections_are_those_of_the_dequantized_model(
    load_quantized, tiny_checkpoint, tmp_path, architecture, fields, size
):
    folder = tiny_checkpoint(architecture, head_dim=32, hidden_size=128, intermediate_size=256, **fields)
    quantized, meant = both(folder, tmp_path)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(1))
    for rank in range(size):
        found, expected = (load_quantized(one, rank, size).blocks[1] for one in (quantized, meant))
        for layer, same in ((found.attention.qkv, expected.attention.qkv), (found.mlp.gate_up, expected.mlp.gate_up)):
            out, exact = (one.scheme.apply(one, x, None) for one in (layer, same))
            torch.testing.assert_close(out, exact, rtol=0, atol=0.02 * float(exact.abs().max()))


def test_a_scale_of_many_rows_that_would_have_to_be_permuted_is_named(load_quantized, tiny_checkpoint, tmp_path):
    sizes = {"head_dim": 128, "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 2}
    shutil.copytree(tiny_checkpoint("Glm4ForCausalLM", **sizes, num_key_value_heads=1), tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"^model\.layers\.\d\.self_attn\.[qk]_proj\.scale: .* rows have to"):
        load_quantized(quantize(tmp_path / "model"))
