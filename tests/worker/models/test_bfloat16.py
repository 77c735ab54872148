"""bfloat16 on the CPU against transformers: logits within a bound, and the same greedy text up to ties."""

import sys
from pathlib import Path

import pytest
import torch

from quire.kernels.cpu import attention, rope_store_kv
from quire.kernels.cpu.linear import activation, linear, norm
from quire.kernels.cpu.native import load as load_library
from quire.kernels.cpu.native import runnable_sets

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import expert_models

pytestmark = pytest.mark.integration

BOUND = 2**-4
"""Of a logit against float32 on the same weights, over the largest magnitude of all: sixteen roundings of 2^-8."""
SMALL = {
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 21,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 320,
}
MODELS = {
    "llama": ("LlamaForCausalLM", {"head_dim": 32}),
    "qwen3 tied": ("Qwen3ForCausalLM", {"head_dim": 64, "tie_word_embeddings": True}),
    "mistral with a window, heads of 16": ("MistralForCausalLM", {"sliding_window": 21}),
    "gemma 3, whose gains are float32": ("Gemma3ForCausalLM", {"head_dim": 32, "query_pre_attn_scalar": 32}),
    "gemma 4 of one tower, whose keys are values": (
        "Gemma4UnifiedForCausalLM",
        {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
}
STEEP = {
    "gemma 3n, with streams and sparse gates": (
        "Gemma3nForCausalLM",
        {**SMALL, "num_hidden_layers": 4, "laurel_rank": 5, "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0]},
    ),
    "gemma 4, whose last layers read another's keys": ("Gemma4ForCausalLM", {**SMALL, "num_hidden_layers": 4}),
    "gemma 4, with experts beside": expert_models.MODELS["gemma 4: beside a dense block"],
}
"""Models of scores that no head's size divides, or of experts: one rounding chooses another token or expert."""


@pytest.fixture(params=runnable_sets())
def instruction_set(request, monkeypatch):
    library = load_library(request.param)
    for form in (activation, attention, linear, norm, rope_store_kv):
        monkeypatch.setattr(form, "native", lambda: library)
    return request.param


def by_transformers(folder):
    """The library's model in bfloat16, and the same weights in float32."""
    import transformers

    return [
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for dtype in (torch.bfloat16, torch.float32)
    ]


def logits_of(model, row, prompt):
    """[new tokens, vocab_size] of a row, which is run whole"""
    with torch.inference_mode():
        return model(torch.tensor([row.tokens[:-1]])).logits[0, len(prompt) - 1 :].float()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_that_of_transformers_up_to_ties(name, instruction_set, tiny_checkpoint, load, greedy, prompts):
    architecture, config = MODELS[name]
    folder = tiny_checkpoint(architecture, dtype="bfloat16", **config)
    ours = greedy(load(folder, dtype=torch.bfloat16), dtype=torch.bfloat16).generate(prompts, 24)
    stored, exact = by_transformers(folder)
    for row, prompt in zip(ours, prompts, strict=True):
        new = torch.tensor(row.tokens[len(prompt) :])
        reference, wide = (logits_of(model, row, prompt) for model in (stored, exact))
        own, bound = torch.stack(row.logits).float(), BOUND * wide.abs().amax(1)
        assert torch.equal(own.argmax(1), new)
        assert ((own - wide).abs().amax(1) <= bound).all()
        assert (own - wide).square().mean() <= 1.5 * (reference - wide).square().mean()  # no worse than transformers
        best, second = reference.topk(2).values.unbind(1)
        clear = best - second > bound
        assert torch.equal(reference.argmax(1)[clear], new[clear])
        assert clear.any()


@pytest.mark.parametrize("name", STEEP)
def test_logits_of_steep_models_are_no_further_from_float32_than_those_of_transformers(
    name, tiny_checkpoint, load, greedy, prompts
):
    architecture, config = STEEP[name]
    folder = tiny_checkpoint(architecture, dtype="bfloat16", **config)
    ours = greedy(load(folder, dtype=torch.bfloat16), dtype=torch.bfloat16).generate(prompts, 24)
    stored, exact = by_transformers(folder)
    errors = []
    for row, prompt in zip(ours, prompts, strict=True):
        reference, wide = (logits_of(model, row, prompt) for model in (stored, exact))
        own = torch.stack(row.logits).float()
        errors.append([(one - wide).square().mean() for one in (own, reference)] + [wide.square().mean()])
    own, theirs, size = torch.tensor(errors).sum(0)
    assert own <= 1.5 * theirs
    assert own <= 2**-8 * size
