"""The text of Gemma 4: layers that see everything have wider heads, fewer of keys and values, and a rope that turns a
part of them. Sounds are not read."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from quire.worker.fields import (
    MAX_EXPERTS,
    Config,
    Gate,
    activation,
    count,
    dtype_name,
    flag,
    inside,
    integer,
    number,
    section,
    shown,
)
from quire.worker.specs.families.gemma import NORMS
from quire.worker.specs.families.llama import decoder, decoder_names, read_attention, read_sliding
from quire.worker.specs.kinds.expert_names import of_all
from quire.worker.specs.kinds.rope import of_layer_type
from quire.worker.specs.spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerInputSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
)
from quire.worker.weights.layout import stacked
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError


def _names(prefix: str, called: str) -> NameMap:
    found = with_inputs(decoder_names(prefix, called, NORMS), prefix, called)
    layer = rf"{prefix}layers\.(?P<n>\d+)\."
    rules = (
        NameRule(rf"{layer}layer_scalar", "blocks.{n}.factor.value"),
        NameRule(rf"{layer}router\.proj\.weight", "blocks.{n}.mlp.router.experts.weight"),
        NameRule(rf"{layer}router\.scale", "blocks.{n}.mlp.router_norm.weight"),
        NameRule(rf"{layer}router\.per_expert_scale", "blocks.{n}.mlp.scales.value"),
        NameRule(rf"{layer}pre_feedforward_layernorm_2\.weight", "blocks.{n}.mlp.experts_norm.weight"),
        NameRule(rf"{layer}post_feedforward_layernorm_2\.weight", "blocks.{n}.mlp.experts_end_norm.weight"),
        NameRule(rf"{layer}post_feedforward_layernorm_1\.weight", "blocks.{n}.mlp.shared_end_norm.weight"),
        *of_all(layer, stacked),
    )
    return replace(found, rules=(*found.rules, *rules))


def with_inputs(names: NameMap, prefix: str, called: str) -> NameMap:
    """The names of a decoder, and those of what its layers get beside the hidden state; see `decoder_names`."""
    layer, here = rf"{prefix}layers\.(?P<n>\d+)\.", "blocks.{n}.input."
    rules = (
        NameRule(rf"{layer}per_layer_input_gate\.(?P<tensor>\w+)", here + "gate.{tensor}"),
        NameRule(rf"{layer}per_layer_projection\.(?P<tensor>\w+)", here + "projection.{tensor}"),
        NameRule(rf"{layer}post_per_layer_input_norm\.weight", here + "norm.weight"),
        NameRule(rf"{prefix}embed_tokens_per_layer\.weight", "layer_inputs.embedding.weight"),
        NameRule(rf"{prefix}per_layer_model_projection\.(?P<tensor>\w+)", "layer_inputs.projection.{tensor}"),
        NameRule(rf"{prefix}per_layer_projection_norm\.weight", "layer_inputs.norm.weight"),
    )
    linear = (
        *(f"{called}layers.{{n}}.{name}" for name in ("per_layer_input_gate", "per_layer_projection")),
        f"{called}per_layer_model_projection",
    )
    return replace(names, rules=(*names.rules, *rules), linear=(*names.linear, *linear))


NAMES: Final = _names(r"(model\.)?", "model.")
WRAPPED_NAMES: Final = _names(r"model\.language_model\.", "model.language_model.").ignoring(
    r"model\.(audio_tower|embed_audio)\..+"
)
"""Those of a model with towers, of which that of sounds is not read."""
DEFAULTS: Final[Config] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "num_kv_shared_layers": 0,
}
UNIFIED_DEFAULTS: Final[Config] = {
    **DEFAULTS,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
"""Those of the models that have no tower."""
ROPES: Final[Config] = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
PERIOD: Final = 6
"""Every sixth layer sees everything where `layer_types` does not say, and the last one always."""


def read_gemma4(config: Config, generation: Config) -> ModelSpec:
    return _decoder({**DEFAULTS, **config}, generation)


def read_unified_gemma4(config: Config, generation: Config) -> ModelSpec:
    return _decoder({**UNIFIED_DEFAULTS, **config}, generation)


def read_wrapped(config: Config, generation: Config) -> ModelSpec:
    """The text of a model that has towers."""
    return read_text(config, generation, DEFAULTS, _decoder)


def read_wrapped_unified(config: Config, generation: Config) -> ModelSpec:
    return read_text(config, generation, UNIFIED_DEFAULTS, _decoder)


def beside_experts(names: NameMap) -> NameMap:
    """The names of a checkpoint whose dense blocks have experts beside them."""
    dense = "blocks.{n}.mlp."
    rules = (
        replace(rule, target=rule.target.replace(dense, f"{dense}shared.", 1)) if "mlp\\." in rule.pattern else rule
        for rule in names.rules
    )
    return replace(names, rules=tuple(rules))


def without_keys(names: NameMap, layers: range) -> NameMap:
    """The names of a checkpoint that may hold keys and values of layers which read those of others."""
    numbers = "|".join(map(str, layers))
    return names.ignoring(rf"(model\.)?(language_model\.)?layers\.({numbers})\.self_attn\.[kv]_(proj|norm)\.\w+")


def read_text(
    config: Config, generation: Config, defaults: Config, read: Callable[[Config, Config], ModelSpec]
) -> ModelSpec:
    """The text of a model that has towers, whose section `read` reads. Raises ModelError."""
    with inside("text_config"):
        text = {"eos_token_id": config.get("eos_token_id"), **defaults, **section(config, "text_config")}
        outside = {
            "architectures": config["architectures"],
            "dtype": dtype_name(config) or dtype_name(text),
            "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
        }
        return read({**text, **outside}, generation)


def _decoder(config: Config, generation: Config) -> ModelSpec:
    _refuse(config)
    layers = _layers(config)
    cap = config.get("final_logit_softcapping")
    spec = decoder(config, generation, layers, _norm(config))
    return replace(
        spec,
        embedding_scale=math.sqrt(spec.hidden_size),
        logit_cap=None if cap is None else number(config, "final_logit_softcapping"),
    )


def _layers(config: Config) -> tuple[LayerSpec, ...]:
    slides = read_sliding(config, PERIOD)
    slides[-1] = False
    num_keeping = len(slides) - count(config, "num_kv_shared_layers")
    layers: list[LayerSpec] = []
    for place, is_sliding in enumerate(slides):
        layer = _layer(config, place, is_sliding, is_wide=place >= num_keeping)
        if place >= num_keeping:
            layer = reading(layer, source(slides, num_keeping, is_sliding), layers)
        layers.append(layer)
    return tuple(layers)


def _refuse(config: Config) -> None:
    """Raises ModelError for what is not served."""
    if config.get("use_bidirectional_attention") == "all":
        raise ModelError("use_bidirectional_attention", "every token sees those before it; choose another model")


def _layer(config: Config, place: int, is_sliding: bool, *, is_wide: bool) -> LayerSpec:
    """`is_wide`: its feed-forward may be twice as wide."""
    twice = is_wide and flag(config, "use_double_wide_mlp", False)
    kind = activation(config, "gelu_pytorch_tanh", "hidden_activation")
    given = read_input(config, kind) if config.get("hidden_size_per_layer_input") else None
    dense = FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size") * (2 if twice else 1), activation=kind
    )
    return LayerSpec(
        attention=_attention(config, place, is_sliding),
        feed_forward=_experts(config, dense) if flag(config, "enable_moe_block", False) else dense,
        norms="both",
        input=given,
        scaled=True,
    )


def read_input(config: Config, kind: Gate) -> LayerInputSpec:
    """The input of each layer beside the hidden state, chosen by a gate of this activation. Raises ModelError."""
    size, rows = (integer(config, name) for name in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"))
    pad = 0 if config.get("pad_token_id") is None else count(config, "pad_token_id")
    return LayerInputSpec(size=size, vocab_size=rows, pad=pad, activation=kind)


def _experts(config: Config, dense: FeedForwardSpec) -> ExpertsSpec:
    """Experts beside a dense block. Raises ModelError."""
    num_experts, top_k = integer(config, "num_experts", most=MAX_EXPERTS), integer(config, "top_k_experts")
    if top_k > num_experts:
        raise ModelError("top_k_experts", f"{top_k} cannot be chosen of {num_experts} experts")
    return ExpertsSpec(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=integer(config, "moe_intermediate_size"),
        axis="moe_intermediate_size",
        activation=dense.activation,
        renormalize=True,
        shared=dense,
        beside=_norm(config),
    )


def _norm(config: Config) -> NormSpec:
    return NormSpec(number(config, "rms_norm_eps", 1e-6), "rms_wide")


def source(slides: Sequence[bool], num_keeping: int, is_sliding: bool) -> int | None:
    """The last layer that keeps keys and sees as far; None: there is none."""
    return next((place for place in reversed(range(num_keeping)) if slides[place] == is_sliding), None)


def reading(layer: LayerSpec, source: int | None, layers: Sequence[LayerSpec]) -> LayerSpec:
    """The layer, which reads the keys and values of that one. Raises ModelError."""
    own = layer.attention
    other = own if source is None else layers[source].attention
    if source is None or (own.num_kv_heads, own.head_dim) != (other.num_kv_heads, other.head_dim):
        message = "a layer shares the keys and values of an earlier one of its kind and heads, and there is none"
        raise ModelError("num_kv_shared_layers", message)
    return replace(layer, attention=replace(own, reads=source))


def _attention(config: Config, place: int, is_sliding: bool) -> AttentionSpec:
    kind = "sliding_attention" if is_sliding else "full_attention"
    ropes = config.get("rope_parameters") or ROPES
    theta = ROPES[kind]["rope_theta"]
    own = of_layer_type({**config, "rope_parameters": ropes, **_differs(config, place, is_sliding)}, kind, theta)
    bias = flag(config, "attention_bias", False)
    return replace(
        read_attention(own),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        value_norm=True,
        keys_as_values=not is_sliding and flag(config, "attention_k_eq_v", False),
        score_scale=1.0,
        window=integer(config, "sliding_window") if is_sliding else None,
    )


def _differs(config: Config, place: int, is_sliding: bool) -> dict[str, Any]:
    """Fields in which a layer differs from the config: as a saved one says for its number, a published one for the
    layers that see everything."""
    stated = config.get("per_layer_config")
    if stated is None:
        if is_sliding:
            return {}
        heads = config.get("num_global_key_value_heads") if flag(config, "attention_k_eq_v", False) else None
        return {"head_dim": config["global_head_dim"]} | ({} if heads is None else {"num_key_value_heads": heads})
    own = None
    if isinstance(stated, dict):  # of more than ten layers the numbers are as long as the last one's: "04"
        own = {number.lstrip("0") or "0": fields for number, fields in stated.items()}.get(str(place), {})
    if not isinstance(own, dict) or not own.keys() <= {"head_dim", "num_key_value_heads"}:
        raise ModelError(
            "per_layer_config", f"must state head_dim or num_key_value_heads of layer {place}, got {shown(own)}"
        )
    return own


READERS: Final[Mapping[str, Callable[[Config, Config], ModelSpec]]] = MappingProxyType(
    {"Gemma4ForCausalLM": read_gemma4, "Gemma4UnifiedForCausalLM": read_unified_gemma4}
)
"""Architectures -> what reads their config."""
