"""Weights alone quantized, activations as they are: what is computed equals the model of the dequantized weights."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_classifiers import SHAPE

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start

QUANTIZED = re.compile(
    r".*(_proj|\.query|\.key|\.value|(attention\.output|intermediate|layer\.\d+\.output)\.dense)\.weight"
)
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
STATED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None}},
    "ignore": ["lm_head"],
}


def both(folder, outside):
    """Copies of a checkpoint: quantized, and of the weights that this means."""
    quantized, meant = outside / "quantized", outside / "meant"
    for copy in (quantized, meant):
        shutil.copytree(folder, copy)
    stored, dense = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored[name] = dense[name] = weight
        if QUANTIZED.fullmatch(name):
            scale = weight.abs().amax(1, keepdim=True) / 448
            stored[name], stored[f"{name}_scale"] = (weight / scale).to(torch.float8_e4m3fn), scale
            dense[name] = stored[name].float() * scale
    save_file(stored, quantized / "model.safetensors", metadata={"format": "pt"})
    save_file(dense, meant / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": STATED}))
    return quantized, meant


def vectors(folder, settings, drive, prompts):
    started = start(WorkerConfig(**{**settings, "model": str(folder)}), 0, Device("cpu", 0), Groups)
    driver = drive(started.executor, 8)
    for slot, prompt in enumerate(prompts):
        driver.scribe.admit(slot, prompt)
    result = driver.run([(slot, len(prompt)) for slot, prompt in enumerate(prompts)])
    return started.facts.quantization, [np.frombuffer(vector, np.float32) for vector in result.embeddings]


@pytest.mark.parametrize(
    ("architecture", "kind", "fields"),
    [
        ("BertModel", transformers.BertConfig, {}),
        ("XLMRobertaModel", transformers.XLMRobertaConfig, {"pad_token_id": 1, "type_vocab_size": 1}),
        ("Qwen3Model", transformers.Qwen3Config, {"num_key_value_heads": 2, "head_dim": 32}),
    ],
)
def test_vectors_are_those_of_the_dequantized_model(settings, drive, tmp_path, architecture, kind, fields):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        getattr(transformers, architecture)(kind(**SHAPE, **fields)).save_pretrained(tmp_path / "model")
    quantized, meant = both(tmp_path / "model", tmp_path)
    prompts = [[5, 9, 17], list(range(2, 60))]
    (name, ours), (none, theirs) = (vectors(one, settings, drive, prompts) for one in (quantized, meant))
    assert (name, none) == ("compressed-tensors (f8 rows)", "none")
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other, atol=2e-5)


@pytest.mark.sampled(1)
@pytest.mark.integration
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_two_ranks_draw_the_tokens_of_transformers(group, scribe, tiny_checkpoint, tmp_path, architecture):
    quantized, meant = both(tiny_checkpoint(architecture), tmp_path)
    workers, writer, prompt = group(2, model=str(quantized)), scribe(8), list(range(40, 61))
    ready = workers.join()
    assert ready[0].facts.quantization == "compressed-tensors (f8 rows)"
    writer.admit(0, prompt)
    drawn = []
    for rows in ([(0, 10)], [(0, 11)], *([(0, 1)] for _ in range(6))):
        drawn += np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(meant, dtype=torch.float32)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=7, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert drawn == out[0, len(prompt) :].tolist()
    assert workers.stop() == [0, 0]
