"""Families whose files have tensors and keys of their own: names, values and metadata as llama.cpp converts them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import gguf
import numpy as np

AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
LONGROPE = {
    "rope_type": "longrope", "attention_factor": 1.1547005, "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
    "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4],
}  # fmt: skip


@dataclass
class Family:
    architecture: str
    model_type: str
    config: dict
    """Fields of config.json beside those of all."""
    layer: dict
    """Names in a layer that it has for itself -> those of a safetensors checkpoint."""
    shapes: Callable = lambda config: {}
    """Shapes of a layer that others have not, or None for what it has not."""
    add_metadata: Callable = lambda writer, config: None
    adds_one: bool = False
    """To every gain."""
    extra: Callable = field(default=lambda config: {})
    """Tensors that are no weights."""


def around(config):
    return {"post_attention_norm.weight": (config["hidden_size"],), "post_ffw_norm.weight": (config["hidden_size"],)}


def gemma3_shapes(config):
    return around(config) | {f"attn_{name}_norm.weight": (config["head_dim"],) for name in "qk"}


def of_gemma2(writer, config):
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def of_gemma3(writer, config):
    writer.add_sliding_window(config["sliding_window"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])


def phi3_shapes(config):
    head, hidden = config["head_dim"], config["hidden_size"]
    rows = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * head
    merged = {"attn_qkv.weight": (rows, hidden), "ffn_up.weight": (2 * config["intermediate_size"], hidden)}
    return merged | {f"{name}.weight": None for name in ("attn_q", "attn_k", "attn_v", "ffn_gate")}


def of_phi3(writer, config):
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    writer.add_rope_dimension_count(int(config["partial_rotary_factor"] * config["head_dim"]))
    writer.add_rope_scaling_attn_factors(config["rope_scaling"]["attention_factor"])
    writer.add_sliding_window(0)


def phi3_factors(config):
    found = {"long": config["rope_scaling"]["long_factor"], "short": config["rope_scaling"]["short_factor"]}
    return {f"rope_factors_{name}.weight": np.array(values, np.float32) for name, values in found.items()}


def glm4_shapes(config):
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    biases = {f"attn_{name}.bias": (count * config["head_dim"],) for name, count in heads.items()}
    merged = {"ffn_up.weight": (2 * config["intermediate_size"], config["hidden_size"]), "ffn_gate.weight": None}
    return around(config) | biases | merged


def of_glm4(writer, config):
    writer.add_rope_dimension_count(int(config["partial_rotary_factor"] * config["head_dim"]))


def gpt_oss_shapes(config):
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    shapes = {f"attn_{name}.bias": (count * config["head_dim"],) for name, count in heads.items()}
    for part, (outputs, inputs) in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
        shapes[f"ffn_{part}_exps.weight"] = (experts, outputs, inputs)
        shapes[f"ffn_{part}_exps.bias"] = (experts, outputs)
    return {
        **shapes,
        "attn_output.bias": (hidden,),
        "attn_sinks.weight": (config["num_attention_heads"],),
        "post_attention_norm.weight": (hidden,),
        "ffn_gate_inp.weight": (experts, hidden),
        "ffn_gate_inp.bias": (experts,),
        **{f"{name}.weight": None for name in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")},
    }


def of_gpt_oss(writer, config):
    scaling = config["rope_scaling"]
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaling["factor"])
    writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])


FAMILIES = {
    "gemma": Family("GemmaForCausalLM", "gemma", {"hidden_act": "gelu_pytorch_tanh"}, {}, adds_one=True),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "gemma2",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
        AROUND,
        around,
        of_gemma2,
        adds_one=True,
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 6,
        },
        AROUND,
        gemma3_shapes,
        of_gemma3,
        adds_one=True,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        "phi3",
        {
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 64,
            "sliding_window": None,
            "rope_scaling": LONGROPE,
        },
        {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        phi3_shapes,
        of_phi3,
        extra=phi3_factors,
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        "glm4",
        {"partial_rotary_factor": 0.5, "attention_bias": True},
        {
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        glm4_shapes,
        of_glm4,
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "attention_bias": True,
            "rope_scaling": {**YARN, "original_max_position_embeddings": 64},
            "rope_theta": 150000.0,
        },
        {
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            **{f"ffn_{part}_exps": f"mlp.experts.{part}_proj" for part in ("gate", "up", "down")},
        },
        gpt_oss_shapes,
        of_gpt_oss,
    ),
}
