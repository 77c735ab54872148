"""Phi-3 and Phi-4, GLM-4: fused projections, and heads of which a part rotates."""

from dataclasses import replace
from typing import Any, Final

from quire.worker.fields import Config, flag, integer, num_layers
from quire.worker.specs.families.llama import decoder, decoder_names, read_attention, read_feed_forward
from quire.worker.specs.spec import LayerSpec, ModelSpec

NAMES: Final = decoder_names(r"(model\.)?", "model.", fused=("qkv", "gate_up"))
GLM4_NORMS: Final = {
    "input_layernorm": "attention_norm",
    "post_self_attn_layernorm": "attention_end_norm",
    "post_attention_layernorm": "mlp_norm",
    "post_mlp_layernorm": "mlp_end_norm",
}
GLM4_NAMES: Final = decoder_names(r"(model\.)?", "model.", GLM4_NORMS, fused=("gate_up",))
PHI3_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
GLM4_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1.5625e-7,
}
OLDER_ROPES: Final = ("su", "yarn")
"""Names that Phi-3's longrope had."""


def read_phi3(config: Config, generation: Config) -> ModelSpec:
    """Phi-3 and Phi-4."""
    config = {**PHI3_DEFAULTS, **config}
    for field in ("rope_scaling", "rope_parameters"):
        config[field] = _renamed(config.get(field))
    window = None if config.get("sliding_window") is None else integer(config, "sliding_window")
    layer = LayerSpec(
        attention=replace(read_attention(config, partial=1.0), window=window), feed_forward=read_feed_forward(config)
    )
    return decoder(config, generation, (layer,) * num_layers(config))


def read_glm4(config: Config, generation: Config) -> ModelSpec:
    config = {**GLM4_DEFAULTS, **config}
    attention = read_attention(config, partial=0.5, interleaved=True)
    layer = LayerSpec(
        attention=replace(attention, qkv_bias=flag(config, "attention_bias", True)),
        feed_forward=read_feed_forward(config),
        norms="both",
    )
    return decoder(config, generation, (layer,) * num_layers(config))


def _renamed(stated: Any) -> Any:
    """The rope's section, with the name that its type has today."""
    if not isinstance(stated, dict) or stated.get("rope_type", stated.get("type")) not in OLDER_ROPES:
        return stated
    return {**stated, "rope_type": "longrope"}
