"""Qwen3-VL with experts: what its config leaves out, and its matrices as transformers writes and as hubs store them."""

import json
import shutil

import pytest
import tiny_qwen3_vl_moe
import torch
from safetensors.torch import load_file, save_file
from test_divided_towers import Meeting, Member
from transformers import Qwen3VLMoeConfig

from quire.worker.build_context import BuildContext
from quire.worker.models.build import build_model, load_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.load import match

CPU = torch.device("cpu")
TEXT = {key: value for key, value in tiny_qwen3_vl_moe.TEXT.items() if key != "initializer_range"}
KEYS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "mlp_only_layers", "num_key_value_heads")


def experts_of(model):
    return {name: tensor for name, tensor in model.state_dict().items() if ".experts." in name}


@pytest.fixture
def copied(seeing_checkpoint, tmp_path):
    return shutil.copytree(seeing_checkpoint("Qwen3VLMoe"), tmp_path / "model")


def test_published_matrices_load_as_those_that_transformers_writes(seeing_checkpoint, load, copied):
    tiny_qwen3_vl_moe.publish(copied)
    theirs, ours = (experts_of(load(folder)) for folder in (seeing_checkpoint("Qwen3VLMoe"), copied))
    assert len(ours) == 4
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("is_published", [False, True])
def test_two_ranks_hold_a_half_of_every_expert(is_published, copied, load):
    if is_published:
        tiny_qwen3_vl_moe.publish(copied)
    whole, meeting = experts_of(load(copied)), Meeting()
    for rank in range(2):
        context = BuildContext(Member(rank, meeting), CPU, torch.float32, everywhere(DenseScheme()))
        half = experts_of(load_model(copied, read_spec(copied), context).model)
        own = slice(rank * 12, rank * 12 + 12)
        for layer in (0, 2):
            gate, up = whole[f"blocks.{layer}.mlp.experts.gate_up"].split(24, 1)
            wanted = torch.cat((gate[:, own], up[:, own]), 1)
            assert torch.equal(half[f"blocks.{layer}.mlp.experts.gate_up"], wanted)
            down = whole[f"blocks.{layer}.mlp.experts.down"][..., own]
            assert torch.equal(half[f"blocks.{layer}.mlp.experts.down"], down)


@pytest.mark.parametrize(
    ("inner", "shape", "message"),
    [
        (32, None, r"experts\.gate_up_proj: is 64 by 64, so its shape does not tell outputs from inputs"),
        (64, None, r"experts\.down_proj: is 64 by 64, so its shape does not tell"),
        (24, (5, 48, 63), r"experts\.gate_up_proj: has shape .* describes \[5, 48, 64\], or \[5, 64, 48\]"),
        (24, (4, 64, 48), r"experts\.gate_up_proj: has shape .* describes \[5, 48, 64\], or \[5, 64, 48\]"),
    ],
)
def test_a_shape_that_tells_nothing_or_is_another_is_refused_by_the_tensors_name(
    inner, shape, message, seeing_checkpoint, tmp_path
):
    made = seeing_checkpoint("Qwen3VLMoe", text={"moe_intermediate_size": inner})
    folder = shutil.copytree(made, tmp_path / "model")
    if shape is not None:
        tensors = load_file(folder / "model.safetensors")
        tensors["model.language_model.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(shape)
        save_file(tensors, folder / "model.safetensors")
    spec = read_spec(folder)
    context = BuildContext(Member(0, Meeting()), torch.device("meta"), torch.float32, everywhere(DenseScheme()))
    with Checkpoint(folder) as source, pytest.raises(CheckpointError, match=message):
        match(build_model(spec, context), source, checkpoint_names(spec))


@pytest.mark.parametrize("key", KEYS)
def test_a_key_left_out_means_what_it_means_to_the_library(key):
    text = {name: value for name, value in TEXT.items() if name != key}
    text["num_attention_heads"] = 16
    if key == "mlp_only_layers":
        text["decoder_sparse_step"] = 2
    whole = Qwen3VLMoeConfig(text_config=text, vision_config=tiny_qwen3_vl_moe.FAMILY.vision).to_dict()
    config = {**whole, "architectures": ["Qwen3VLMoeForConditionalGeneration"]}
    config["text_config"]["eos_token_id"] = config["eos_token_id"] = 0
    stated = parse_spec(json.loads(json.dumps(config)), {})
    del config["text_config"]["num_local_experts" if key == "num_experts" else key]
    assert parse_spec(config, {}) == stated
    assert all(experts.renormalize for experts in stated.experts)
