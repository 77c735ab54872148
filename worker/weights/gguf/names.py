"""Names of tensors in GGUF files as safetensors checkpoints have them, and the rows that a conversion moved.

Source: llama.cpp's gguf-py/gguf/tensor_mapping.py, and its conversions of Llama and Gemma. No torch: deploy reads this.
"""

import re
from collections.abc import Mapping
from typing import Final

from quire.worker.weights.gguf.header import Value
from quire.worker.weights.header import CheckpointError

ARCHITECTURE: Final = "general.architecture"
ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "bert": "BertModel",
}
"""Architecture of a file -> the one that config.json names."""
ROUTED: Final = ("qwen3moe", "gpt-oss")
"""Those whose layers have experts, all of a layer's in one tensor."""
ENCODER: Final = "bert"
"""That of BERT, RoBERTa and XLM-RoBERTa: the rows of positions that RoBERTa keeps for padding are cut off."""
ROPE_FACTORS: Final = "rope_freqs.weight"
"""Divisors of the angles, which config.json states in another way."""
LONG_FACTORS: Final = "rope_factors_long.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
"""Factors of the wavelengths of Phi-3, which config.json states, too."""
EMBEDDING: Final = "token_embd.weight"
HEAD: Final = "output.weight"
TOKEN_TYPES: Final = "token_types.weight"

_MODEL: Final = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_ENCODER: Final = {
    EMBEDDING: "embeddings.word_embeddings.weight",
    "position_embd.weight": "embeddings.position_embeddings.weight",
    TOKEN_TYPES: "embeddings.token_type_embeddings.weight",
    "token_embd_norm.weight": "embeddings.LayerNorm.weight",
    "token_embd_norm.bias": "embeddings.LayerNorm.bias",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_AROUND: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SINKS: Final = "self_attn.sinks"
_OWN: Final[dict[str, dict[str, str]]] = {
    "gemma2": _AROUND,
    "gemma3": _AROUND,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "glm4": {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
    },
    "gpt-oss": {
        "post_attention_norm": "post_attention_layernorm",
        "attn_sinks": _SINKS,
        "ffn_gate_inp": "mlp.router",
    },
}
"""Architecture -> names that it has for itself."""
_AROUND_ONE: Final = ("gemma", "gemma2", "gemma3")
"""Architectures whose gains a conversion added one to."""
EXPERTS: Final = ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight")
"""Ends of the names of tensors of all experts of a layer, [experts, outputs, inputs]."""
_ENCODER_LAYER: Final = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_IN_LAYER: Final = re.compile(r"blk\.(?P<n>\d+)\.(?P<module>\w+)\.(?P<tensor>weight|bias)", re.ASCII)
_HEADS: Final = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
_INTERLEAVED: Final = "llama"


def checkpoint_name(name: str, metadata: Mapping[str, Value]) -> str | None:
    """The name in a safetensors checkpoint: the same if it is not known, None for what is no weight."""
    if name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS):
        return None
    arch = metadata.get(ARCHITECTURE)
    is_encoder = arch == ENCODER
    own = _OWN.get(arch, {}) if isinstance(arch, str) else {}
    match, modules = _IN_LAYER.fullmatch(name), _ENCODER_LAYER if is_encoder else _LAYER | own
    if match is None or match["module"] not in modules:
        return (_ENCODER if is_encoder else _MODEL).get(name, name)
    layer = f"encoder.layer.{match['n']}" if is_encoder else f"model.layers.{match['n']}"
    module = f"{layer}.{modules[match['module']]}"
    return module if module.endswith(_SINKS) else f"{module}.{match['tensor']}"


def is_around_one(name: str, metadata: Mapping[str, Value]) -> bool:
    """A vector of gains that holds one more than the checkpoint's."""
    return metadata.get(ARCHITECTURE) in _AROUND_ONE and name.endswith("norm.weight")


def interleaved_heads(name: str, metadata: Mapping[str, Value]) -> int:
    """Heads whose rows a conversion moved, so that the two of a rotated pair are neighbours; 0: none were.

    Rows [heads, 2, D / 2] became [heads, D / 2, 2], in the queries and keys of Llama. Raises CheckpointError where the
    metadata does not say how many heads there are.
    """
    match = _IN_LAYER.fullmatch(name)
    if metadata.get(ARCHITECTURE) != _INTERLEAVED or match is None or match["module"] not in _HEADS:
        return 0
    queries = metadata.get(f"{_INTERLEAVED}.{_HEADS['attn_q']}")
    heads = metadata.get(f"{_INTERLEAVED}.{_HEADS[match['module']]}", queries)
    if type(heads) is not int or heads < 1:
        raise CheckpointError(f"{name}: {_INTERLEAVED}.{_HEADS[match['module']]} must be a positive number")
    return heads
