"""Two and four ranks in processes of their own, on CPUs: the tokens of one rank, each reading only its share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from parts import forked
from safetensors import safe_open

from quire.worker.specs.registry import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import expert_models

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("tensor_parallel_rank.py")
GROWING = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "llama_4_scaling_beta": 0.7,
}
GEMMA4 = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 9}
MODELS = [
    ("LlamaForCausalLM", {"vocab_size": 321, "attention_bias": True, "mlp_bias": True}),
    ("Qwen2ForCausalLM", {"num_key_value_heads": 1}),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True, "head_dim": 32}),
    # five tokens on four ranks: two each, so one rank holds one of them and the last only padding
    ("MistralForCausalLM", {"vocab_size": 5, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 9}),
    ("MixtralForCausalLM", {"num_local_experts": 5}),
    expert_models.MODELS["qwen2 moe: a shared expert"],
    expert_models.MODELS["glm 4.5: sigmoids, groups, half a head rotates"],
    expert_models.MODELS["minimax m2: sigmoids, norms over all heads"],
    expert_models.MODELS["llama 4: chunks, layers without a rope, scaled inputs"],
    expert_models.MODELS["gpt-oss: biases, clamped gates, sinks, windows, yarn"],
    expert_models.MODELS["gemma 4: beside a dense block"],
    ("Ministral3ForCausalLM", {"rope_parameters": GROWING, "head_dim": 16, "num_key_value_heads": 2}),
    ("Gemma3ForCausalLM", {"head_dim": 32, "sliding_window": 9, "sliding_window_pattern": 2}),
    ("Gemma4UnifiedForCausalLM", {**GEMMA4, "num_global_key_value_heads": 1, "attention_k_eq_v": True}),
    (
        "Gemma4ForCausalLM",
        {**GEMMA4, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3}
        | {"num_kv_shared_layers": 3, "hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 320},
    ),
    (
        "Gemma3nForCausalLM",
        {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "laurel_rank": 5}
        | {"layer_types": ["sliding_attention", "full_attention"] * 3, "intermediate_size": [96, 64, 96, 96, 32, 96]}
        | {"activation_sparsity_pattern": [0.9, 0.6, 0.5, 0.0, 0.0, 0.0]}
        | {"hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 320},
    ),
    ("Phi3ForCausalLM", {"num_key_value_heads": 4}),
    ("Glm4ForCausalLM", {"head_dim": 32, "num_key_value_heads": 1}),
    ("Olmo2ForCausalLM", {"num_key_value_heads": 2}),
    ("Cohere2ForCausalLM", {"sliding_window": 9, "sliding_window_pattern": 2}),
    ("GraniteForCausalLM", {"embedding_multiplier": 3.0, "residual_multiplier": 0.25, "attention_multiplier": 0.2}),
]

DEALT = [
    ("MixtralForCausalLM", {"num_local_experts": 5}),
    expert_models.MODELS["qwen2 moe: a shared expert"],
    expert_models.MODELS["glm 4.5: sigmoids, groups, half a head rotates"],
    expert_models.MODELS["llama 4: chunks, layers without a rope, scaled inputs"],
    expert_models.MODELS["gemma 4: beside a dense block"],
]
"""Models whose ranks hold whole experts: five of them, then seven, make some ranks hold one more."""
NAMES = [*(name for name, _ in MODELS), *(f"{name} dealt" for name, _ in DEALT)]


@pytest.fixture(scope="module")
def some_prompts(prompts):
    return [[token % 5 for token in prompt] for prompt in prompts[::4]]


QUICK = {
    *("LlamaForCausalLM", "Gemma4ForCausalLM", "GptOssForCausalLM", "MiniMaxM2ForCausalLM", "Gemma3nForCausalLM"),
    *("MixtralForCausalLM dealt", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"),
    *("Phi3ForCausalLM", "Cohere2ForCausalLM"),
}
"""Those that `make test` runs, one of each kind of layer that ranks share: the others are made of the same layers.

Some have experts, shared ones beside them, a head that is the embedding, a rank with padding alone, one projection for
three, or blocks that run beside each other.
"""


@pytest.fixture(scope="module")
def folders(tiny_checkpoint, request):
    """Of the models that are asked for: (place in NAMES, folder)."""
    asked = {item.callspec.params["model"] for item in request.session.items if item.path == request.path}
    return {
        number: tiny_checkpoint(architecture, **config)
        for number, (architecture, config) in enumerate((*MODELS, *DEALT))
        if number in asked
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, some_prompts, folders):
    """What each of four processes reported: {group size: {place in NAMES: result}}."""
    num_dealt = sum(number >= len(MODELS) for number in folders)
    arguments = [tmp_path_factory.mktemp("rendezvous"), json.dumps(some_prompts), num_dealt, *folders.values()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        forked.Popen(
            [sys.executable, PROGRAM, str(rank), *map(str, arguments)], stdout=subprocess.PIPE, env=environment
        )
        for rank in range(4)
    ]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * 4
    reports = map(json.loads, outputs)
    return [{size: dict(zip(folders, made, strict=True)) for size, made in report.items()} for report in reports]


WHOLE = (
    *("o_proj.bias", "down_proj.bias", "block_sparse_moe.gate.weight", "mlp.gate.weight", "shared_expert_gate.weight"),
    *(f"per_layer_{name}.weight" for name in ("input_gate", "projection", "model_projection")),
    *(f"altup_{end}projections.{number}.weight" for end in ("", "unembed_") for number in range(3)),
    *("linear_left.weight", "linear_right.weight", "_coefs.weight", "output_scale"),
    *("router.weight", "router.bias", "router.proj.weight", "router.scale", "per_expert_scale"),
    *("correction_bias", "layer_scalar", "down_proj_bias"),
)
"""Ends of the names of tensors that every rank holds, beside norms: biases of rows, routers, and small ones."""


def expected_bytes(folder, size):
    """Of all ranks: every tensor once, but norms, other than those over all heads, and what is WHOLE `size` times, and
    KV heads as often as they are repeated."""
    config = json.loads((folder / "config.json").read_text())
    is_whole, of_layers = config["model_type"] in ("olmo2", "minimax_m2"), config.get("per_layer_config", {})
    total = 0
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            number = name.partition("layers.")[2].partition(".")[0]
            kv_heads = {**config, **of_layers.get(number, {})}["num_key_value_heads"]
            if "k_proj" in name or "v_proj" in name or (is_whole and "k_norm" in name):
                copies = max(1, size // kv_heads)
            elif is_whole and "q_norm" in name:
                copies = 1
            elif "norm" in name or name.endswith(WHOLE):
                copies = size
            else:
                copies = 1
            total += copies * file.get_tensor(name).nbytes
    return total


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(number, id=name, marks=() if name in QUICK else pytest.mark.thorough)
        for number, name in enumerate(NAMES)
    ],
)
def test_ranks_give_the_tokens_of_one_rank_and_read_only_their_share(
    size, model, ranks, folders, some_prompts, load, greedy
):
    results = [rank[str(size)][model] for rank in ranks[:size]]
    expected = [row.tokens for row in greedy(load(folders[model])).generate(some_prompts, 24)]
    assert [result["tokens"] for result in results] == [expected] * size
    if read_spec(folders[model]).layers[0].input is not None:
        expected = results[0]["tokens_of_embedded"]  # what is put in place of tokens has no rows in another table
    shorter = [tokens[: len(prompt) + 4] for tokens, prompt in zip(expected, some_prompts, strict=True)]
    assert [result["tokens_of_embedded"] for result in results] == [shorter] * size
    assert sum(result["bytes_read"] for result in results) == expected_bytes(folders[model], size)
