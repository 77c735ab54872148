"""Tiny models of experts, each with its family's trait: odd counts, and inner sizes that differ from all others."""

from collections import Counter
from contextlib import contextmanager

MODELS = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 48}),
    "qwen2 moe: a shared expert": (
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
        },
    ),
    "qwen3 moe: renormalised, a dense layer": (
        "Qwen3MoeForCausalLM",
        {
            "num_experts": 16,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "head_dim": 32,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "gemma 4: beside a dense block": (
        "Gemma4ForCausalLM",
        {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 48}
        | {"hidden_size_per_layer_input": 0, "head_dim": 16, "global_head_dim": 32, "sliding_window": 21},
    ),
    "olmoe: norms over all heads": (
        "OlmoeForCausalLM",
        {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    "glm 4.5: sigmoids, groups, half a head rotates": (
        "Glm4MoeForCausalLM",
        {
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.7,
            "num_hidden_layers": 3,
            "attention_bias": True,
            "use_qk_norm": True,
            "head_dim": 32,
        },
    ),
    "minimax m2: sigmoids, norms over all heads": (
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 7, "num_experts_per_tok": 3, "intermediate_size": 48, "head_dim": 32}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    "ernie 4.5: a bias beside a softmax": (
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": 9,
            "moe_k": 3,
            "moe_intermediate_size": 24,
            "num_hidden_layers": 4,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
        },
    ),
    "llama 4: chunks, layers without a rope, scaled inputs": (
        "Llama4ForCausalLM",
        {
            "num_local_experts": 5,
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "num_hidden_layers": 4,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 0, 1, 1],
            "head_dim": 32,
            "attention_chunk_size": 24,
            "floor_scale": 16,
            "attn_scale": 0.7,
        },
    ),
    "dots.llm1: windows": (
        "Dots1ForCausalLM",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "sliding_window": 21,
            "max_window_layers": 1,
        },
    ),
    "gpt-oss: biases, clamped gates, sinks, windows, yarn": (
        "GptOssForCausalLM",
        {
            "num_local_experts": 7,
            "num_experts_per_tok": 3,
            "intermediate_size": 48,
            "head_dim": 16,
            "sliding_window": 11,
            "num_hidden_layers": 3,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
        },
    ),
}


@contextmanager
def seen_experts(decoder):
    """A count for each layer of experts: which the tokens of the steps within were sent to."""
    layers = [block.mlp for block in decoder.blocks if hasattr(block.mlp, "experts")]
    seen = [Counter() for _ in layers]
    hooks = [
        layer.experts.register_forward_pre_hook(lambda _, inputs, own=own: own.update(inputs[1].flatten().tolist()))
        for layer, own in zip(layers, seen, strict=True)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for own in seen:
            own.pop(-1, None)
