"""Checkpoints made by the formats' own tools: weights equal to the tools' bit for bit, and tokens."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from meant import FLOATS, GROUPS, OF_TOOLS, PROMPTS, engine, greedy, not_of_tool, together, weights_of

from quire.deploy.commands.start_plan import quantization_in_words
from quire.kernels.linear import linear_int8
from quire.kernels.linear.linear_f8 import linear_f8_reference
from quire.kernels.linear.linear_f8 import pack as pack_f8
from quire.kernels.linear.linear_f8_blocks import linear_f8_blocks_reference
from quire.worker.config import WorkerConfig
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place

MADE = (
    "ct_fp8", "ct_fp8_block", "ct_fp8_dynamic", "ct_kv", "ct_w8a8", "ct_w8a8_tensor",
    "fbgemm", "fp8_blocks", "fp8_dynamic", "fp8_static", "fp8_ue8m0",
    "modelopt_blocks", "modelopt_fp8", "modelopt_mixed", "modelopt_rows", *GROUPS, *FLOATS,
)  # fmt: skip
DIVIDED = tuple(name for name in MADE if name not in ("awq_symmetric", "ct_fp8_block", "fp8_ue8m0"))
"""Those that two ranks can share."""
BY_FILES = ("ct_w8a16", "gptq_order", "gptq_order_v2")
"""Those whose files alone show the type of the scales, or the order of the inputs."""


IN_PARTS = ("awq", "ct_fp8", "ct_nvfp4", "fp8_blocks", "gptq_order", "modelopt_mxfp4")
"""Those that ranks share, and that GPUs hold, in `make test`: codes of rows, blocks, groups, and orders."""
HELD = [
    *((name, 1, "cpu") for name in MADE),
    *((name, 2, "cpu") for name in DIVIDED),
    *((name, 1, "cuda") for name in (*GROUPS, *FLOATS)),
    *((name, 2, "cuda") for name in (*GROUPS, *FLOATS) if name in DIVIDED),
]


@pytest.mark.parametrize(
    ("name", "size", "served_on"),
    [
        pytest.param(*row, marks=() if row[1:] == (1, "cpu") or row[0] in IN_PARTS else pytest.mark.thorough)
        for row in HELD
    ],
)
def test_every_weight_is_that_of_the_formats_own_tool_bit_for_bit(made, load_quantized, name, size, served_on):
    ranks = [load_quantized(made / name, rank, size, served_on=served_on) for rank in range(size)]
    kv_heads = ranks[0].spec.layers[0].attention.num_kv_heads
    found = together([weights_of(model) for model in ranks], kv_heads)
    assert not_of_tool(found, name) == []
    assert len(OF_TOOLS[name]) >= 7 or name == "ct_kv"


BLOCKS = {"blocks": "token", "blocks alone": "none"}
"""What becomes of the activations beside blocks."""


class Referenced(nn.Module):
    """A linear layer of transformers that computes what the plain reference of a form does with the file's tensors."""

    def __init__(self, stored, kind, bound, input_scale):
        super().__init__()
        self.stored, self.kind, self.bound, self.input_scale = stored, kind, bound, input_scale

    def forward(self, x):
        flat, weight, scale = x.flatten(0, -2), self.stored["weight"], self.stored["scale"].float()
        if self.bound is not None:
            flat = flat.clamp(-self.bound, self.bound)
        if self.kind in BLOCKS:
            blocks = scale.view([-(-length // 128) for length in weight.shape])
            out = linear_f8_blocks_reference(flat, pack_f8(weight), blocks, None, BLOCKS[self.kind])
        elif self.kind == "int8":
            rows = scale.flatten().expand(len(weight)).contiguous()
            out = linear_int8.linear_int8_reference(flat, linear_int8.pack_integers(weight), rows, None)
        else:
            rows = scale.flatten().expand(len(weight)).contiguous()
            out = linear_f8_reference(flat, pack_f8(weight), rows, None, self.kind, self.input_scale)
        return out.view(*x.shape[:-1], -1)


def referenced(folder, kind, bound=None):
    """The model in transformers, its quantized layers replaced."""
    import transformers

    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().eval()
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: one.float() for name, one in tensors.items()}, strict=False)
    model.tie_weights()
    for path, module in list(model.named_modules()):
        scales = [one for one in ("weight_scale", "weight_scale_inv") if f"{path}.{one}" in tensors]
        if not isinstance(module, nn.Linear) or not scales:
            continue
        owner, _, name = path.rpartition(".")
        merged = next(
            (group for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")) if name in group), (name,)
        )
        same = [f"{owner}.{one}.input_scale" for one in merged]
        inputs = None
        if kind == "static":
            # parts that share a product share a scale; those beside a dense one keep their own
            shared = same if all(one in tensors for one in same) else [f"{path}.input_scale"]
            inputs = torch.stack([tensors[one].float().reshape(()) for one in shared]).max().reshape(1)
        stored = {"weight": tensors[f"{path}.weight"], "scale": tensors[f"{path}.{scales[0]}"]}
        model.get_submodule(owner)._modules[name] = Referenced(stored, kind, bound, inputs)
    return model


@pytest.mark.parametrize(
    ("name", "kind", "quantization"),
    [
        ("ct_fp8", "static", "compressed-tensors (f8 rows)"),
        ("ct_fp8_block", "blocks", "compressed-tensors (f8 blocks)"),
        ("ct_fp8_dynamic", "token", "compressed-tensors (f8 rows)"),
        ("ct_w8a8", "int8", "compressed-tensors (int8 rows)"),
        ("ct_w8a8_tensor", "int8", "compressed-tensors (int8 rows)"),
        ("fbgemm", "bounded", "fbgemm_fp8 (f8 rows)"),
        ("fp8_blocks", "blocks", "fp8 (f8 blocks)"),
        ("fp8_dynamic", "token", "fp8 (f8 rows)"),
        ("fp8_static", "static", "fp8 (f8 rows)"),
        ("fp8_ue8m0", "blocks", "fp8 (f8 blocks)"),
        ("modelopt_blocks", "blocks alone", "modelopt (f8 blocks)"),
        ("modelopt_fp8", "static", "modelopt (f8 rows)"),
        ("modelopt_rows", "token", "modelopt (f8 rows)"),
    ],
)
def test_the_engine_draws_the_tokens_of_the_reference_operations(made, drive, name, kind, quantization):
    model = referenced(made / name, *(("token", 3.0) if kind == "bounded" else (kind,)))
    started, driven = engine(made / name, drive)
    assert started.facts.quantization == quantization
    driver = driven(started)
    for slot, prompt in enumerate(PROMPTS):
        assert driver.generate(slot, prompt, 12) == greedy(model, prompt, 12)


TOKEN, STATIC, ROUNDED = (
    "quantized token by token",
    "quantized by the checkpoint's scales",
    "quantized to 8 bits 32 by 32",
)
IN_BLOCKS, ZEROS, ORDER = "f8 blocks of 128 x 128", "with zero points", "inputs in an order of their own"
IN_WORDS = {
    "awq": ("awq", f"4-bit groups of 32 {ZEROS}", ROUNDED),
    "awq_symmetric": ("awq", "4-bit groups of 64", ROUNDED),
    "ct_fp8": ("compressed-tensors", "f8 rows", STATIC),
    "ct_fp8_block": ("compressed-tensors", IN_BLOCKS, f"{TOKEN} and 128 inputs by 128"),
    "ct_fp8_dynamic": ("compressed-tensors", "f8 rows", TOKEN),
    "ct_w4a16": ("compressed-tensors", "4-bit groups of 32", ROUNDED),
    "ct_w4a16_asym": ("compressed-tensors", f"4-bit groups of 32 {ZEROS}", ROUNDED),
    "ct_w8a16": ("compressed-tensors", "8-bit groups of all inputs", ROUNDED),
    "ct_w8a16_asym": ("compressed-tensors", f"8-bit groups of all inputs {ZEROS}", ROUNDED),
    "ct_w8a8": ("compressed-tensors", "int8 rows", TOKEN),
    "ct_w8a8_tensor": ("compressed-tensors", "int8 rows", TOKEN),
    "fbgemm": ("fbgemm_fp8", "f8 rows", f"{TOKEN} up to 3"),
    "fp8_blocks": ("fp8", IN_BLOCKS, f"{TOKEN} and 128 inputs by 128"),
    "fp8_dynamic": ("fp8", "f8 rows", TOKEN),
    "fp8_static": ("fp8", "f8 rows", STATIC),
    "fp8_ue8m0": ("fp8", IN_BLOCKS, f"{TOKEN} and 128 inputs by 128"),
    "gptq": ("gptq", "4-bit groups of 32", ROUNDED),
    "gptq_8": ("gptq", "8-bit groups of 32", ROUNDED),
    "gptq_asym": ("gptq", f"4-bit groups of all inputs {ZEROS}", ROUNDED),
    "gptq_order": ("gptq", f"4-bit groups of 32 {ZEROS}, {ORDER}", ROUNDED),
    "gptq_order_v2": ("gptq", f"4-bit groups of 32, {ORDER}", ROUNDED),
    "modelopt_blocks": ("modelopt", IN_BLOCKS, "as they are"),
    "modelopt_fp8": ("modelopt", "f8 rows", STATIC),
    "modelopt_rows": ("modelopt", "f8 rows", TOKEN),
}
"""Method, form and activations; those of test_floats.py, and of several forms, apart."""


@pytest.mark.parametrize("name", IN_WORDS)
def test_doctor_names_the_plan_of_every_checkpoint(made, name):
    method, form, beside = IN_WORDS[name]
    needs, refusals = fit(WorkerConfig(model=str(made / name)), Place(False, None))
    assert refusals == []
    size = r"[\d.]+ KiB"
    said = rf"{method}: {size} {re.escape(form)}, activations {re.escape(beside)}, {size} dense"
    assert re.fullmatch(said, quantization_in_words(needs))
    assert needs.kv_dtype == ("fp8" if name == "modelopt_fp8" else needs.dtype)  # the others state nothing of the cache


def test_doctor_names_each_form_of_a_checkpoint_of_several_and_none_of_a_cache_alone(made):
    words = {
        name: quantization_in_words(fit(WorkerConfig(model=str(made / name)), Place(False, None))[0])
        for name in ("gptq_dynamic", "ct_kv")
    }
    assert f"4-bit groups of 32 {ZEROS}, activations {ROUNDED}" in words["gptq_dynamic"]
    assert f"8-bit groups of 64 {ZEROS}, activations {ROUNDED}" in words["gptq_dynamic"]
    assert re.fullmatch(r"compressed-tensors: [\d.]+ KiB dense", words["ct_kv"])
    assert {*MADE} == {*IN_WORDS, *FLOATS, "gptq_dynamic", "ct_kv", "modelopt_mixed"}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", MADE)
def test_dummy_weights_have_the_forms_of_a_config_without_files(made, drive, tmp_path, name):
    for file in (made / name).glob("*.json"):
        shutil.copy(file, tmp_path)
    started, driven = engine(tmp_path, drive, load_format="dummy")
    whole, _ = engine(made / name, drive)
    assert started.facts.quantization == whole.facts.quantization
    same = started.facts.weight_bytes == whole.facts.weight_bytes
    assert same == (name not in BY_FILES)
    assert len(driven(started).generate(0, [5, 3], 12)) == 12


def test_weights_alone_quantized_draw_the_tokens_of_transformers_on_the_dequantized_ones(made, drive, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(made / "ct_fp8_dynamic", folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None
    (folder / "config.json").write_text(json.dumps(config))
    import transformers

    del config["quantization_config"]
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().eval()
    tensors = load_file(folder / "model.safetensors")
    weights = {
        name: one.float() * tensors[f"{name}_scale"].float() if f"{name}_scale" in tensors else one
        for name, one in tensors.items()
    }
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    started, driven = engine(folder, drive)
    driver = driven(started)
    for slot, prompt in enumerate(PROMPTS):
        assert driver.generate(slot, prompt, 12) == greedy(model, prompt, 12)
