"""Tiny models of every dense architecture and rope type, each with its own trait."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
SHORT = {"rope_type": "default", "rope_theta": 50.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
}
GEMMA4 = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 21, "hidden_size_per_layer_input": 0}
GEMMA3N = {
    "head_dim": 16,
    "sliding_window": 21,
    "hidden_size_per_layer_input": 9,
    "vocab_size_per_layer_input": 320,
    "laurel_rank": 5,
}
MODELS = {
    "llama 2: as many key-value heads as heads": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama 3: grouped queries, llama3 rope": ("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "llama tied, every bias": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "six heads, two key-value heads": (
        "LlamaForCausalLM",
        {"num_attention_heads": 6, "hidden_size": 96, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    "four heads, one key-value head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "heads wider than hidden / heads": ("LlamaForCausalLM", {"head_dim": 32}),
    "linear rope": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "dynamic rope, past the original length": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
            "max_position_embeddings": 72,
        },
    ),
    "yarn": ("LlamaForCausalLM", {"rope_parameters": YARN}),
    "yarn with mscale and real borders": (
        "LlamaForCausalLM",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False, "beta_fast": 16}},
    ),
    "yarn with a stated attention factor": ("LlamaForCausalLM", {"rope_parameters": {**YARN, "attention_factor": 0.8}}),
    "mistral, window shorter than the sequence": ("MistralForCausalLM", {"sliding_window": 21}),
    "mistral without a window": ("MistralForCausalLM", {"sliding_window": None}),
    "ministral 3, queries that grow with their position": (
        "Ministral3ForCausalLM",
        {"rope_parameters": {**YARN, "original_max_position_embeddings": 24, "llama_4_scaling_beta": 0.7}},
    ),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2 tied, windows on the upper layers": (
        "Qwen2ForCausalLM",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3 tied, with biases": (
        "Qwen3ForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 16},
    ),
    "gemma: gains around one, embeddings scaled": ("GemmaForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma 2: capped scores and logits, every other layer with a window": (
        "Gemma2ForCausalLM",
        {"head_dim": 32, "sliding_window": 21, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0}
        | {"final_logit_softcapping": 10.0, "num_hidden_layers": 3},
    ),
    "gemma 3: two ropes, one of them stretched": (
        "Gemma3ForCausalLM",
        {"head_dim": 32, "sliding_window": 21, "query_pre_attn_scalar": 24, "num_hidden_layers": 4}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": SHORT}},
    ),
    "gemma 3: heads of 256": ("Gemma3ForCausalLM", {"sliding_window_pattern": 2, "sliding_window": 9}),
    "gemma 3n: streams, sparse gates, layers that read another's keys": (
        "Gemma3nForCausalLM",
        {**GEMMA3N, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3}
        | {"num_kv_shared_layers": 3, "intermediate_size": [96, 80, 64, 96, 112, 96]}
        | {"activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.3, 0.0, 0.0], "final_logit_softcapping": 10.0},
    ),
    "gemma 3n: another active stream, which nothing scales, and a bias": (
        "Gemma3nForCausalLM",
        {**GEMMA3N, "altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False}
        | {"attention_bias": True, "num_hidden_layers": 5, "num_kv_shared_layers": 0, "num_key_value_heads": 1}
        | {"initializer_range": 0.2},
    ),
    "gemma 4: wider heads where everything is seen": (
        "Gemma4ForCausalLM",
        {**GEMMA4, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "gemma 4: fewer keys, which are values, and a bias": (
        "Gemma4ForCausalLM",
        {**GEMMA4, "num_key_value_heads": 4, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
        | {"attention_bias": True, "num_hidden_layers": 6, "final_logit_softcapping": 10.0},
    ),
    "gemma 4: layers that read another's keys, and vectors of their own": (
        "Gemma4ForCausalLM",
        {**GEMMA4, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3}
        | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "num_key_value_heads": 1}
        | {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 320},
    ),
    "gemma 4 of one tower: a key and value head where everything is seen": (
        "Gemma4UnifiedForCausalLM",
        {**GEMMA4, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
    "gemma 4: heads of 256 and 512": (
        "Gemma4ForCausalLM",
        {"hidden_size_per_layer_input": 0, "sliding_window": 9, "num_hidden_layers": 3},
    ),
    "phi 3: one projection for queries, keys and values": ("Phi3ForCausalLM", {"sliding_window": 21}),
    "phi 4: longrope beyond the original length, three quarters of a head": (
        "Phi3ForCausalLM",
        {"head_dim": 16, "original_max_position_embeddings": 64, "rope_parameters": LONGROPE},
    ),
    "glm 4: pairs side by side in half a head, norms on both sides": (
        "Glm4ForCausalLM",
        {"head_dim": 32, "rope_parameters": {**SHORT, "partial_rotary_factor": 0.5}},
    ),
    "olmo 2: norms behind, and over all heads": ("Olmo2ForCausalLM", {"tie_word_embeddings": True}),
    "olmo 3: windows": ("Olmo3ForCausalLM", {"sliding_window": 21, "num_hidden_layers": 4}),
    "exaone 4: no rope without a window": ("Exaone4ForCausalLM", {"sliding_window": 21, "num_hidden_layers": 4}),
    "exaone 4 without windows": ("Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "cohere: a parallel block": ("CohereForCausalLM", {"attention_bias": True}),
    "cohere 2: no rope without a window": (
        "Cohere2ForCausalLM",
        {"sliding_window": 21, "num_hidden_layers": 4, "layer_norm_eps": 1e-3, "logit_scale": 0.5},
    ),
    "smollm 3: every other layer without a rope": (
        "SmolLM3ForCausalLM",
        {"no_rope_layer_interval": 2, "num_hidden_layers": 4},
    ),
    "smollm 3: windows on the layers without a rope": (
        "SmolLM3ForCausalLM",
        {"no_rope_layers": [1, 0, 1], "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 21},
    ),
    "granite: four factors": (
        "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 2.0}
        | {"rms_norm_eps": 1e-2, "attention_bias": True, "mlp_bias": True},
    ),
    "seed-oss": ("SeedOssForCausalLM", {"head_dim": 32, "attention_out_bias": True, "mlp_bias": True}),
    "ernie 4.5": ("Ernie4_5ForCausalLM", {"head_dim": 32, "use_bias": True}),
}
