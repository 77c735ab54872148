"""Ministral 3 as it is published: 8-bit floats by one scale of a tensor and of its inputs, but for tower and head."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_mistral3 import MERGE, PATCH, write_checkpoint

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import load_model
from quire.worker.quant.form import DENSE, F8Rows
from quire.worker.quant.select import schemes_of
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

CPU = torch.device("cpu")
CODES, LARGEST = torch.float8_e4m3fn, 448.0
INPUTS = 0.02
"""Scale of the inputs of all products: they are within 448 times of it."""
STATED = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "weight_block_size": None,
    "dequantize": False,
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
}
YARN = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "original_max_position_embeddings": 24,
        "llama_4_scaling_beta": 0.7}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The checkpoint with the weights that the codes of `quantized` stand for."""
    folder = write_checkpoint(
        tmp_path_factory.mktemp("plain"), text={"model_type": "ministral3", "rope_parameters": YARN}
    )
    tensors = load_file(folder / "model.safetensors")
    for name in filter(is_coded, tensors):
        codes, scale = in_codes(tensors[name])
        tensors[name] = codes.float() * scale
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def quantized(plain, tmp_path_factory):
    """`quantized(*others) -> folder`; `others`: tensors in codes, too."""

    def make(*others):
        folder = tmp_path_factory.mktemp("fp8") / "model"
        shutil.copytree(plain, folder)
        tensors = load_file(folder / "model.safetensors")
        for name in [*filter(is_coded, list(tensors)), *others]:
            module = name.removesuffix(".weight")
            tensors[name], tensors[f"{module}.weight_scale_inv"] = in_codes(tensors[name])
            tensors[f"{module}.activation_scale"] = torch.tensor(INPUTS)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": STATED}))
        return folder

    return make


def is_coded(name):
    return name.startswith("language_model.model.layers.") and "_proj" in name


def in_codes(weight):
    scale = weight.abs().amax() / LARGEST
    return (weight / scale).to(CODES), scale


def loaded(folder, **asked):
    spec = read_spec(folder, **asked)
    plan = read_plan(WorkerConfig(model=str(folder), dtype="float32"), spec)
    context = BuildContext(SingleGroup(), CPU, torch.float32, schemes_of(plan, CPU))
    return load_model(folder, spec, context, plan=plan), plan


@torch.inference_mode()
def test_the_decoder_is_quantized_and_the_tower_is_not(quantized, plain, load):
    folder = quantized()
    made, plan = loaded(folder)
    assert set(plan.forms.values()) == {F8Rows("static")}
    assert len(plan.forms) == 3 * 7
    side = 4 * MERGE * PATCH
    asked = [torch.randint(0, 256, (1, side, side, 3), dtype=torch.uint8)], [(1, 4 * MERGE, 4 * MERGE)]
    assert torch.equal(made.model.vision(*asked), load(plain).vision(*asked))
    needs, refusals = fit(WorkerConfig(model=str(folder), dtype="float32"), Place(False, 1 << 30))
    assert refusals == []
    is_dense = [one.nbytes for name, one in made.model.named_parameters() if "blocks" not in name or "norm" in name]
    towers = [
        one.nbytes for name, one in made.model.vision.named_parameters() if "blocks" in name and "norm" not in name
    ]
    assert dict(needs.forms)[DENSE] == sum(is_dense) + sum(towers)


@torch.inference_mode()
def test_its_text_is_that_of_the_library_with_rounded_inputs(quantized, plain, greedy):
    made, _ = loaded(quantized())
    model = transformers.AutoModelForImageTextToText.from_pretrained(plain, dtype=torch.float32).eval()
    for name, module in model.model.language_model.layers.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _, given: ((given[0] / INPUTS).to(CODES).float() * INPUTS,))
    tokens = list(range(20, 60))
    (row,) = greedy(made.model).generate([tokens], 1)
    theirs = model(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(row.logits[0], theirs, rtol=1e-3, atol=1e-3)


def test_a_tower_in_codes_is_refused_where_it_is_read(quantized):
    folder = quantized("multi_modal_projector.linear_1.weight")
    with pytest.raises(ModelError, match=r"multi_modal_projector\.linear_1: is quantized, .*language_model_only"):
        loaded(folder)
    made, _ = loaded(folder, language_only=True)
    assert made.model.vision is None
