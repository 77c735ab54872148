"""A config.json in full of each architecture without sections, and the library's class of its config."""

import transformers

from quire.worker.specs.architectures import ARCHITECTURES

LIBRARY = {
    "Llama": transformers.LlamaConfig,
    "Mistral": transformers.MistralConfig,
    "Ministral3": transformers.Ministral3Config,
    "Qwen2": transformers.Qwen2Config,
    "Qwen3": transformers.Qwen3Config,
    "Gemma": transformers.GemmaConfig,
    "Gemma2": transformers.Gemma2Config,
    "Gemma3": transformers.Gemma3TextConfig,
    "Gemma3n": transformers.Gemma3nTextConfig,
    "Gemma4": transformers.Gemma4TextConfig,
    "Gemma4Unified": transformers.Gemma4UnifiedTextConfig,
    "Phi3": transformers.Phi3Config,
    "Glm4": transformers.Glm4Config,
    "Olmo2": transformers.Olmo2Config,
    "Olmo3": transformers.Olmo3Config,
    "Exaone4": transformers.Exaone4Config,
    "Cohere": transformers.CohereConfig,
    "Cohere2": transformers.Cohere2Config,
    "SmolLM3": transformers.SmolLM3Config,
    "Granite": transformers.GraniteConfig,
    "SeedOss": transformers.SeedOssConfig,
    "Ernie4_5": transformers.Ernie4_5Config,
    "Mixtral": transformers.MixtralConfig,
    "Qwen2Moe": transformers.Qwen2MoeConfig,
    "Qwen3Moe": transformers.Qwen3MoeConfig,
    "Olmoe": transformers.OlmoeConfig,
    "Glm4Moe": transformers.Glm4MoeConfig,
    "MiniMaxM2": transformers.MiniMaxM2Config,
    "Ernie4_5_Moe": transformers.Ernie4_5_MoeConfig,
    "Dots1": transformers.Dots1Config,
    "Llama4": transformers.Llama4TextConfig,
    "GptOss": transformers.GptOssConfig,
    "Bert": transformers.BertConfig,
    "Roberta": transformers.RobertaConfig,
    "XLMRoberta": transformers.XLMRobertaConfig,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 48,
    "rope_theta": 300.0,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.3,
    "truncate": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 300.0,
    "original_max_position_embeddings": 48,
}
ROPES = {
    "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "old": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "old, with both names of the type": {"rope_theta": 5e2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_parameters": YARN},
    "yarn, with the original length outside too": {"rope_parameters": YARN, "original_max_position_embeddings": 96},
    "yarn, with its factor for attention": {"rope_scaling": {**YARN, "attention_factor": 0.8}, "rope_theta": 500.0},
    "llama3": {"rope_parameters": LLAMA3},
    "llama3, with the original length outside too": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 96},
}
DECODER = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "max_position_embeddings": 192,
    "rms_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 9,
}
WINDOWS = {"use_sliding_window": True, "max_window_layers": 3}
GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
}
GEMMA4 = {
    "hidden_activation": "gelu_pytorch_tanh",
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
    "attention_k_eq_v": True,
    "global_head_dim": 24,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
}
PER_LAYER = {
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 300,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
GEMMA3N = {
    "hidden_activation": "gelu_pytorch_tanh",
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
    "num_hidden_layers": 12,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
    "rope_theta": 500.0,
    "rope_local_base_freq": 50.0,
    "altup_num_inputs": 3,
    "altup_active_idx": 1,
    "altup_correct_scale": False,
    "laurel_rank": 10,
    "activation_sparsity_pattern": [0.7] * 5 + [0.0] * 7,
}
SPARSE = {
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
}
V3 = {
    "n_routed_experts": 40,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": False,
    "first_k_dense_replace": 2,
    "n_group": 4,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
}
OWN = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {},
    "Ministral3": {},
    "Qwen2": WINDOWS,
    "Qwen3": {**WINDOWS, "attention_bias": True},
    "Gemma": {"attention_bias": True},
    "Gemma2": {**GEMMA, "attn_logit_softcapping": 7.0},
    "Gemma3": {**GEMMA, "sliding_window_pattern": 3, "rope_theta": 500.0, "rope_local_base_freq": 50.0},
    "Gemma3n": {**GEMMA3N, **PER_LAYER},
    "Gemma4": {**GEMMA4, **PER_LAYER},
    "Gemma4Unified": GEMMA4,
    "Phi3": {"original_max_position_embeddings": 96},
    "Glm4": {"attention_bias": False},
    "Olmo2": {"attention_bias": True},
    "Olmo3": {
        "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "rope_theta": 300.0,
    },
    "Exaone4": {"sliding_window_pattern": 3},
    "Cohere": {"layer_norm_eps": 1e-3, "logit_scale": 0.5, "attention_bias": True},
    "Cohere2": {"layer_norm_eps": 1e-3, "logit_scale": 0.5, "sliding_window_pattern": 3},
    "SmolLM3": {"no_rope_layer_interval": 3, "use_sliding_window": True, "attention_bias": True, "mlp_bias": True},
    "Granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.25,
        "attention_multiplier": 0.1,
        "logits_scaling": 4.0,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "SeedOss": {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    "Ernie4_5": {"use_bias": True},
    "Mixtral": {"num_local_experts": 7, "num_experts_per_tok": 3},
    "Qwen2Moe": {**WINDOWS, **SPARSE, "shared_expert_intermediate_size": 40, "qkv_bias": False},
    "Qwen3Moe": {**WINDOWS, **SPARSE, "attention_bias": True},
    "Olmoe": {
        "attention_bias": True,
        "head_dim": 8,
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
    "Glm4Moe": {**V3, "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5},
    "MiniMaxM2": {"num_local_experts": 10, "num_experts_per_tok": 3},
    "Ernie4_5_Moe": {
        "moe_num_experts": 10,
        "moe_k": 3,
        "moe_intermediate_size": 24,
        "moe_num_shared_experts": 3,
        "moe_layer_start_index": 0,
        "moe_layer_end_index": 2,
        "moe_layer_interval": 2,
    },
    "Dots1": {**V3, "attention_bias": True, "max_window_layers": 2},
    "Llama4": {
        "intermediate_size_mlp": 40,
        "num_local_experts": 3,
        "interleave_moe_layer_step": 2,
        "no_rope_layer_interval": 3,
        "attention_chunk_size": 24,
        "floor_scale": 48,
        "attn_scale": 0.3,
        "attn_temperature_tuning": False,
        "use_qk_norm": False,
        "attention_bias": True,
    },
    "GptOss": {
        "attention_bias": False,
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    },
}
ENCODER = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu_new",
    "type_vocab_size": 3,
    "pad_token_id": 5,
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}


OF_ONE_PIECE = [name for name in ARCHITECTURES if not name.endswith("ForConditionalGeneration")]
"""Those whose config.json has no sections: the others are in vision/test_vision_spec.py."""


def family(architecture):
    return max((name for name in LIBRARY if architecture.startswith(name)), key=len)


DECODERS = [name for name in OF_ONE_PIECE if family(name) in OWN]


def full_config(architecture, rope="new"):
    kind = family(architecture)
    fields = {**DECODER, "pad_token_id": None, **OWN[kind], **ROPES[rope]} if kind in OWN else ENCODER
    if kind in ("Gemma3", "Gemma3n", "Gemma4", "Gemma4Unified", "Olmo3"):  # whose sections are those of kinds of layers
        del fields["rope_parameters"]
    return {"architectures": [architecture], "model_type": LIBRARY[kind].model_type, "dtype": "bfloat16", **fields}
