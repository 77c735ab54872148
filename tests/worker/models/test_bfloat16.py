"""bfloat16 on the CPU against transformers: logits within a bound, and the same greedy text up to ties."""

import pytest
import torch

from quire.kernels.cpu import attention, rope_store_kv
from quire.kernels.cpu.linear import activation, linear, norm
from quire.kernels.cpu.native import load as load_library
from quire.kernels.cpu.native import runnable_sets

pytestmark = pytest.mark.integration

BOUND = 2**-4
"""Of a logit against float32 on the same weights, over the largest magnitude of all: sixteen roundings of 2^-8."""
MODELS = {
    "llama": ("LlamaForCausalLM", {"head_dim": 32}),
    "qwen3 tied": ("Qwen3ForCausalLM", {"head_dim": 64, "tie_word_embeddings": True}),
    "mistral with a window, heads of 16": ("MistralForCausalLM", {"sliding_window": 21}),
    "gemma 3, whose gains are float32": ("Gemma3ForCausalLM", {"head_dim": 32, "query_pre_attn_scalar": 32}),
}


@pytest.fixture(params=runnable_sets())
def instruction_set(request, monkeypatch):
    library = load_library(request.param)
    for form in (activation, attention, linear, norm, rope_store_kv):
        monkeypatch.setattr(form, "native", lambda: library)
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_that_of_transformers_up_to_ties(name, instruction_set, tiny_checkpoint, load, greedy, prompts):
    import transformers

    architecture, config = MODELS[name]
    folder = tiny_checkpoint(architecture, dtype="bfloat16", **config)
    ours = greedy(load(folder, dtype=torch.bfloat16), dtype=torch.bfloat16).generate(prompts, 24)
    stored, exact = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        for dtype in (torch.bfloat16, torch.float32)
    )
    for row, prompt in zip(ours, prompts, strict=True):
        tokens, new = torch.tensor(row.tokens[:-1]), torch.tensor(row.tokens[len(prompt) :])
        chosen = slice(len(prompt) - 1, None)
        with torch.inference_mode():
            reference, wide = (model(tokens[None]).logits[0, chosen].float() for model in (stored, exact))
        own, bound = torch.stack(row.logits).float(), BOUND * wide.abs().amax(1)
        assert torch.equal(own.argmax(1), new)
        assert ((own - wide).abs().amax(1) <= bound).all()
        assert (own - wide).square().mean() <= 1.5 * (reference - wide).square().mean()  # no worse than transformers
        best, second = reference.topk(2).values.unbind(1)
        clear = best - second > bound
        assert torch.equal(reference.argmax(1)[clear], new[clear])
        assert clear.any()
