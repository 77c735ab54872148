"""Experts that are quantized when a model is loaded: what they give, and ranks that share them."""

import sys
from pathlib import Path

import pytest
import torch

from quire.worker.config import WorkerConfig
from quire.worker.layers.experts_apart import ExpertsApart
from quire.worker.quant.form import DENSE
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.quantized import read_plan

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import packed_experts
from loaded_experts import check_sum, check_tokens, config_of, load

GPT_OSS = packed_experts.MODELS["gpt-oss: as published, in MXFP4"]
NUM_EXPERTS = 16
"""Rows of a router in whole blocks: what is counted is what lies in memory."""
GEMMA = {
    "enable_moe_block": True,
    "num_experts": NUM_EXPERTS,
    "top_k_experts": 3,
    "moe_intermediate_size": 64,
    "head_dim": 16,
}
MODELS = {
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": NUM_EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
    "gpt-oss": (GPT_OSS[0], {**GPT_OSS[1], "num_local_experts": NUM_EXPERTS}),
    "gemma 4": ("Gemma4ForCausalLM", GEMMA | {"hidden_size_per_layer_input": 0, "global_head_dim": 32}),
    "llama 4": (
        "Llama4ForCausalLM",
        {"num_local_experts": 5, "intermediate_size": 64, "intermediate_size_mlp": 96, "attention_chunk_size": 24}
        | {"num_hidden_layers": 4, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0, 1, 1], "head_dim": 32},
    ),
}


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return lambda name: tiny_checkpoint(MODELS[name][0], **MODELS[name][1])


@pytest.mark.parametrize("name", ["qwen3 moe", "gpt-oss", "llama 4"])
def test_in_4_bits_tokens_are_those_of_transformers_with_the_weights_that_are_made(
    name, folder, greedy, reference, prompts, tmp_path
):
    stored, meant = packed_experts.in_4_bits(folder(name), tmp_path)
    decoder, some = load(stored, quantization="int4"), prompts[::5]
    check_tokens(greedy(decoder), reference(meant, some, 12), some, (1 << 30,))


@pytest.mark.parametrize("quantization", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("name", ["qwen3 moe", "gpt-oss", "gemma 4"])
def test_logits_are_close_to_those_of_the_weights_and_memory_is_what_was_counted(
    name, quantization, folder, greedy, prompts
):
    exact, rounded = load(folder(name)), load(folder(name), quantization=quantization)
    assert all(isinstance(block.mlp.experts, ExpertsApart) for block in rounded.blocks)
    found = [greedy(model).generate([prompts[-1]], 1)[0].logits[0] for model in (exact, rounded)]
    assert torch.corrcoef(torch.stack(found))[0, 1] > (0.8 if quantization == "int4" else 0.97)
    plan = read_plan(config_of(folder(name), quantization=quantization), rounded.spec).on("cpu")
    counted = sizes.count(rounded.spec, 1).bytes_by_form(4, plan)
    assert counted[DENSE] < sum(counted.values())
    assert sum(counted.values()) == rounded.weight_bytes


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_that_are_dealt_are_quantized_on_every_rank(quantization, folder):
    """By themselves they are what one rank makes of them; none of a rank that holds others is left as it was."""
    whole = load(folder("qwen3 moe"), quantization=quantization)
    shares = [load(folder("qwen3 moe"), rank, 2, True, quantization=quantization) for rank in range(2)]
    check_sum(whole, shares, NUM_EXPERTS)


@pytest.mark.parametrize("quantization", ["int8", "fp8", "int4"])
def test_a_gpu_takes_them_too(quantization, folder):
    config = WorkerConfig(model=str(folder("qwen3 moe")), quantization=quantization)
    assert fit(config, Place(True, None))[1] == []
