"""Quantized weights in modules of the transformers library: tokens of our own layers, and of dequantized weights."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from library_models import MODELS, generated, write
from meant import PROMPTS, engine

from quire.worker.weights.parts import ModelError

pytestmark = pytest.mark.integration

NEW = 12
LARGEST = torch.finfo(torch.float8_e4m3fn).max


def drawn(folder, drive, **fields):
    """The name of the quantization, and the tokens behind each of PROMPTS."""
    started, driven = engine(folder, drive, **fields)
    driver = driven(started)
    return started.facts.quantization, [driver.generate(slot, prompt, NEW) for slot, prompt in enumerate(PROMPTS)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    ["awq", "gptq_order", "ct_w4a16_asym", "ct_w8a8", "ct_fp8_dynamic", "fp8_blocks", "ct_kv", "modelopt_mixed"],
)
def test_checkpoints_of_the_formats_tools_give_the_tokens_of_our_own_layers(name, made, drive):
    theirs = drawn(made / name, drive, model_impl="transformers")
    assert theirs == drawn(made / name, drive, model_impl="quire")


@pytest.mark.parametrize("asked", ["int8", "fp8"])
def test_weights_quantized_at_the_start_give_the_tokens_of_our_own_layers(asked, tiny_checkpoint, drive):
    folder = tiny_checkpoint()
    theirs = drawn(folder, drive, model_impl="transformers", quantization=asked)
    assert theirs == drawn(folder, drive, model_impl="quire", quantization=asked)
    assert theirs[0] == asked


def f8_rows(weight):
    """The tensors of a matrix in 8-bit floats with a scale a row, and what they mean."""
    scale = weight.abs().amax(1, keepdim=True) / LARGEST
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def words(weight):
    """The same in 4 bits with a scale for 32 inputs, eight codes a word."""
    groups = weight.unflatten(1, (-1, 32))
    scale = groups.abs().amax(2) / 7
    codes = (groups / scale[..., None]).round().clamp(-8, 7).flatten(1)
    nibbles = (codes.int() + 8).unflatten(1, (-1, 8))
    packed = sum(nibbles[..., place] << 4 * place for place in range(8)).to(torch.int32)
    shape = torch.tensor(weight.shape)
    meant = (codes.unflatten(1, (-1, 32)) * scale[..., None]).flatten(1)
    return {"weight_packed": packed, "weight_scale": scale, "weight_shape": shape}, meant


FORMATS = {
    "float-quantized": (f8_rows, {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "pack-quantized": (words, {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
}


def quantize(folder, meant, form):
    """Quantize the layers of a checkpoint, and write to the folder `meant` what they mean."""
    pack, scheme = FORMATS[form]
    config = json.loads((folder / "config.json").read_text())
    stored, dequantized = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored[name] = dequantized[name] = tensor
        if "_proj." in name and tensor.ndim == 2:
            del stored[name]
            tensors, dequantized[name] = pack(tensor)
            stored |= {f"{name.removesuffix('weight')}{own}": one for own, one in tensors.items()}
    save_file({name: one.contiguous() for name, one in dequantized.items()}, meant / "model.safetensors")
    save_file({name: one.contiguous() for name, one in stored.items()}, folder / "model.safetensors")
    (meant / "config.json").write_text(json.dumps(config))
    group = {"targets": ["Linear"], "weights": {**scheme, "symmetric": True, "dynamic": False}}
    section = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    config["quantization_config"] = {**section, "config_groups": {"group_0": {**group, "input_activations": None}}}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("architecture", ["ArceeForCausalLM", "ApertusForCausalLM"])
def test_an_architecture_of_the_library_alone_draws_the_tokens_of_its_dequantized_weights(
    architecture, form, drive, tmp_path
):
    folder, meant = tmp_path / "quantized", tmp_path / "meant"
    meant.mkdir()
    write(folder, architecture, MODELS[architecture])
    quantize(folder, meant, form)
    name, tokens = drawn(folder, drive)
    assert name.startswith("compressed-tensors (")
    expected = [row[len(prompt) :] for prompt, (row, _) in zip(PROMPTS, generated(meant, PROMPTS, NEW), strict=True)]
    assert tokens == expected


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("GPT2LMHeadModel", "has no linear layers that are ours"),
        ("DeepseekV3ForCausalLM", "packs experts, which modules of transformers"),
    ],
)
def test_layers_that_stay_the_librarys_are_not_left_dense_in_silence(architecture, message, drive, tmp_path):
    write(tmp_path, architecture, MODELS[architecture])
    with pytest.raises(ModelError, match=message):
        engine(tmp_path, drive, model_impl="transformers", quantization="int8")
