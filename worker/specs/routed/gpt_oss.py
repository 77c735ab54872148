"""gpt-oss: experts with biases and a gate held within limits, sinks, and a window on every other layer."""

from dataclasses import replace
from typing import Final

from quire.worker.fields import MAX_EXPERTS, Config, flag, integer, number
from quire.worker.specs.families import llama
from quire.worker.specs.kinds.expert_names import HALVES, STACKED, of_all_by_part
from quire.worker.specs.spec import ExpertsSpec, LayerSpec, ModelSpec
from quire.worker.weights.layout import (
    stacked,
    stacked_in_turn,
    stacked_in_turn_inputs_first,
    stacked_inputs_first,
)
from quire.worker.weights.names import NameRule
from quire.worker.weights.parts import ModelError

DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
}
ROPE: Final[Config] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
THETA: Final = 150_000.0
"""Values that transformers takes for a key that config.json leaves out."""
LIMITS: Final = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""Numbers of the gate, of which the products of experts know no others."""

_LAYER: Final = r"(model\.)?layers\.(?P<n>\d+)\."
_EXPERTS: Final = rf"{_LAYER}mlp\.experts\."
_PACKED: Final = r"\.(?P<tensor>weight|codes|scale)"
"""Tensors in place of the matrices of all experts, where these are quantized."""
_WEIGHT, _BIAS = (STACKED.replace("{tensor}", name) for name in ("weight", "bias"))
NAMES: Final = replace(
    llama.NAMES,
    rules=(
        *llama.NAMES.rules,
        NameRule(rf"{_LAYER}self_attn\.sinks", "blocks.{n}.attention.sinks.logits"),
        NameRule(rf"{_LAYER}mlp\.router\.weight", "blocks.{n}.mlp.router.experts.weight"),
        NameRule(rf"{_LAYER}mlp\.router\.bias", "blocks.{n}.mlp.router.experts.logit_bias"),
        NameRule(rf"{_EXPERTS}gate_up_proj", _WEIGHT, HALVES, of_experts=stacked_in_turn_inputs_first),
        NameRule(rf"{_EXPERTS}gate_up_proj_bias", _BIAS, HALVES, of_experts=stacked_in_turn),
        NameRule(rf"{_EXPERTS}gate_up_proj{_PACKED}", STACKED, HALVES, of_experts=stacked_in_turn),
        NameRule(rf"{_EXPERTS}down_proj", _WEIGHT, ("down",), of_experts=stacked_inputs_first),
        NameRule(rf"{_EXPERTS}down_proj_bias", _BIAS, ("down",), of_experts=stacked),
        NameRule(rf"{_EXPERTS}down_proj{_PACKED}", STACKED, ("down",), of_experts=stacked),
        *of_all_by_part(rf"{_LAYER}mlp\."),
    ),
    linear=(
        *(name for name in llama.NAMES.linear if ".mlp." not in name),
        *(f"model.layers.{{n}}.mlp.experts.{name}_proj" for name in ("gate_up", "gate", "up", "down")),
    ),
)


def read_gpt_oss(config: Config, generation: Config) -> ModelSpec:
    """The softmax of the chosen logits is that of all of them, renormalised. Raises ModelError for another gate."""
    config = {**DEFAULTS, **config}
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config["rope_parameters"] = ROPE
    for name, known in LIMITS.items():
        if number(config, name, known) != known:
            raise ModelError(name, f"{config[name]} is not supported: the gate of these experts takes {known}")
    bias = flag(config, "attention_bias", True)
    attention = replace(llama.read_attention(config, theta=THETA), qkv_bias=bias, output_bias=bias, sinks=True)
    num_experts = integer(config, "num_local_experts", 128, most=MAX_EXPERTS)
    top_k = integer(config, "num_experts_per_tok", 4)
    if top_k > num_experts:
        raise ModelError("num_experts_per_tok", f"{top_k} cannot be chosen of {num_experts} experts")
    experts = ExpertsSpec(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=integer(config, "intermediate_size"),
        axis="intermediate_size",
        activation="swigluoai",
        bias=True,
        renormalize=True,
    )
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    layers = (
        LayerSpec(attention=replace(attention, window=window if slides else None), feed_forward=experts)
        for slides in llama.read_sliding(config, 2)
    )
    return llama.decoder(config, generation, tuple(layers))
