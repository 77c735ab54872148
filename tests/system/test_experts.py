"""A model of experts behind an engine of real processes, on one rank and on two: the tokens of transformers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quire.proto.api import GenerateRequest

NUM_TOKENS = 16
MODELS = {
    "Qwen2MoeForCausalLM": {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "GptOssForCausalLM": {
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "intermediate_size": 40,
        "head_dim": 16,
        "sliding_window": 11,
    },
}


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_many_at_once_draw_what_transformers_draws(architecture, ranks, serve, tiny_checkpoint):
    import torch
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint(architecture, **MODELS[architecture])
    engine = serve(
        str(folder), "--tensor-parallel-size", ranks, "--max-num-batched-tokens", "24", "--max-num-seqs", "4"
    )
    prompts = [np.random.default_rng(seed).integers(3, 320, 5 + 9 * seed).tolist() for seed in range(5)]

    def generate(prompt):
        request = GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        return list(engine.client.generate(request).outputs[0].token_ids)

    with ThreadPoolExecutor(len(prompts)) as pool:
        made = list(pool.map(generate, prompts))
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, tokens in zip(prompts, made, strict=True):
        out = network.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert out[0, len(prompt) :].tolist() == tokens
    assert engine.stop() == 0
