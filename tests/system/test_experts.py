"""A model of experts behind an engine of real processes, on one rank and on two: the tokens of transformers."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from parts.continued import continued

from quire.proto.api import GenerateRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker" / "models"))  # they share the layouts of checkpoints

from packed_experts import in_4_bits, pack_matrices, publish_gpt_oss

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


@pytest.mark.parametrize(
    ("architecture", "ranks"),
    [("GptOssForCausalLM", "1"), pytest.param("Qwen2MoeForCausalLM", "2", marks=pytest.mark.thorough)],
)
def test_many_at_once_draw_what_transformers_draws(architecture, ranks, serve, tiny_checkpoint):
    folder = tiny_checkpoint(architecture, **MODELS[architecture])
    draws_alike(serve, folder, folder, "--tensor-parallel-size", ranks)


@pytest.mark.parametrize(
    "flags", [pytest.param(("-tp", "2"), marks=pytest.mark.thorough), ("-tp", "2", "--enable-expert-parallel")]
)
def test_gpt_oss_as_published_draws_what_transformers_draws_with_the_weights_it_means(
    flags, serve, tiny_checkpoint, tmp_path
):
    changes = {"hidden_size": 96, "intermediate_size": 64}
    folder = tiny_checkpoint("GptOssForCausalLM", **{**MODELS["GptOssForCausalLM"], **changes})
    stored, meant = publish_gpt_oss(folder, tmp_path)
    draws_alike(serve, stored, meant, "--dtype", "float32", *flags)


@pytest.mark.thorough
def test_8_bit_floats_draw_what_transformers_draws_with_the_weights_they_mean(serve, tiny_checkpoint, tmp_path):
    sizes = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    stored, meant = pack_matrices(tiny_checkpoint("Qwen3MoeForCausalLM", **sizes), tmp_path, "fp8 rows")
    draws_alike(serve, stored, meant, "-tp", "2")


@pytest.mark.thorough
def test_4_bits_made_when_it_is_loaded_draw_what_transformers_draws_with_them(serve, tiny_checkpoint, tmp_path):
    sizes = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    stored, meant = in_4_bits(tiny_checkpoint("Qwen3MoeForCausalLM", **sizes), tmp_path)
    draws_alike(serve, stored, meant, "--quantization", "int4", "--dtype", "float32")


def draws_alike(serve, folder, reference, *flags):
    engine = serve(str(folder), "--max-num-batched-tokens", "24", "--max-num-seqs", "4", *flags)
    prompts = [np.random.default_rng(seed).integers(3, 320, 5 + 9 * seed).tolist() for seed in range(5)]

    def generate(prompt):
        request = GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        return list(engine.client.generate(request).outputs[0].token_ids)

    with ThreadPoolExecutor(len(prompts)) as pool:
        made = list(pool.map(generate, prompts))
    assert made == continued(reference, prompts, NUM_TOKENS)
    assert engine.stop() == 0
