"""Llama, Mistral, Ministral 3, Qwen2 and Qwen3: decoders that differ in their windows, biases and norms of heads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quire.worker.fields import (
    Config,
    activation,
    checkpoint_dtype,
    count,
    flag,
    integer,
    num_layers,
    number,
    token_ids,
)
from quire.worker.specs.rope import max_model_len, read_rope, rope_parameters
from quire.worker.specs.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError


def decoder_names(prefix: str, called: str) -> NameMap:
    """The names of a decoder. `prefix`: pattern of what stands before its tensors; `called`: before its layers, where
    a quantization calls them."""
    layer = rf"{prefix}layers\.(?P<n>\d+)\."
    return NameMap(
        (
            NameRule(rf"{prefix}embed_tokens\.(?P<tensor>\w+)", "embedding.{tensor}"),
            NameRule(rf"{prefix}norm\.weight", "norm.weight"),
            NameRule(r"lm_head\.(?P<tensor>\w+)", "head.{tensor}"),
            NameRule(rf"{layer}input_layernorm\.weight", "blocks.{n}.attention_norm.weight"),
            NameRule(rf"{layer}post_attention_layernorm\.weight", "blocks.{n}.mlp_norm.weight"),
            NameRule(
                rf"{layer}self_attn\.(?P<part>[qkv])_proj\.(?P<tensor>\w+)", "blocks.{n}.attention.qkv.{part}.{tensor}"
            ),
            NameRule(rf"{layer}self_attn\.o_proj\.(?P<tensor>\w+)", "blocks.{n}.attention.output.{tensor}"),
            NameRule(rf"{layer}self_attn\.q_norm\.weight", "blocks.{n}.attention.query_norm.weight"),
            NameRule(rf"{layer}self_attn\.k_norm\.weight", "blocks.{n}.attention.key_norm.weight"),
            NameRule(rf"{layer}mlp\.(?P<part>gate|up)_proj\.(?P<tensor>\w+)", "blocks.{n}.mlp.gate_up.{part}.{tensor}"),
            NameRule(rf"{layer}mlp\.down_proj\.(?P<tensor>\w+)", "blocks.{n}.mlp.down.{tensor}"),
        ),
        ignored=(rf"{prefix}layers\.\d+\.self_attn\.rotary_emb\.inv_freq", rf"{prefix}rotary_emb\.inv_freq"),
        linear=(
            *(f"{called}layers.{{n}}.self_attn.{part}_proj" for part in "qkvo"),
            *(f"{called}layers.{{n}}.mlp.{part}_proj" for part in ("gate", "up", "down")),
            "lm_head",
        ),
    )


NAMES: Final = decoder_names(r"(model\.)?", "model.")
"""A checkpoint of the model without its head leaves out the prefix."""

LLAMA_DEFAULTS: Final[Config] = {"max_position_embeddings": 2048}
MISTRAL_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
MINISTRAL3_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 262_144,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
QUERY_BETA: Final = "llama_4_scaling_beta"
MINISTRAL3_ROPE: Final[Config] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    QUERY_BETA: 0.1,
}
QWEN2_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN3_DEFAULTS: Final[Config] = {**QWEN2_DEFAULTS, "head_dim": 128}
"""Values transformers takes for a key that config.json leaves out, where the architectures differ. A key that is there
and null is not left out. The sizes that every published config states have no default."""


def read_llama(config: Config, generation: Config) -> ModelSpec:
    config = {**LLAMA_DEFAULTS, **config}
    bias = flag(config, "attention_bias", False)
    attention = replace(_attention(config), qkv_bias=bias, output_bias=bias)
    feed_forward = replace(_feed_forward(config), bias=flag(config, "mlp_bias", False))
    return _decoder(config, generation, attention, feed_forward, [None] * num_layers(config))


def read_mistral(config: Config, generation: Config) -> ModelSpec:
    config = {**MISTRAL_DEFAULTS, **config}
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    windows = [window] * num_layers(config)
    return _decoder(config, generation, _attention(config), _feed_forward(config), windows)


def read_ministral3(config: Config, generation: Config) -> ModelSpec:
    """Beyond the length of its training the queries grow with their position."""
    config = {**MINISTRAL3_DEFAULTS, **config}
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config["rope_parameters"] = MINISTRAL3_ROPE
    spec = read_mistral(config, generation)
    stated = rope_parameters(config)
    if QUERY_BETA not in stated:
        return spec
    beta = number(stated, QUERY_BETA)
    return replace(spec, layers=tuple(layer.growing_by(beta) for layer in spec.layers))


def read_qwen2(config: Config, generation: Config) -> ModelSpec:
    config = {**QWEN2_DEFAULTS, **config}
    attention = replace(_attention(config), qkv_bias=True)
    return _decoder(config, generation, attention, _feed_forward(config), _windows_of_some(config))


def read_qwen3(config: Config, generation: Config) -> ModelSpec:
    config = {**QWEN3_DEFAULTS, **config}
    bias = flag(config, "attention_bias", False)
    attention = replace(_attention(config), qk_norm="head", qkv_bias=bias, output_bias=bias)
    return _decoder(config, generation, attention, _feed_forward(config), _windows_of_some(config))


def _decoder(
    config: Config,
    generation: Config,
    attention: AttentionSpec,
    feed_forward: FeedForwardSpec,
    windows: Sequence[int | None],
) -> ModelSpec:
    """A decoder of layers that differ in their windows; `generation` is generation_config.json, empty without one."""
    layers = (LayerSpec(attention=replace(attention, window=window), feed_forward=feed_forward) for window in windows)
    return ModelSpec(
        architecture=config["architectures"][0],
        vocab_size=integer(config, "vocab_size"),
        hidden_size=integer(config, "hidden_size"),
        layers=tuple(layers),
        norm=NormSpec(number(config, "rms_norm_eps", 1e-6)),
        tied_embeddings=flag(config, "tie_word_embeddings", False),
        max_model_len=max_model_len(attention.rope, integer(config, "max_position_embeddings")),
        dtype=checkpoint_dtype(config),
        eos_token_ids=token_ids(generation, "eos_token_id") or token_ids(config, "eos_token_id"),
    )


def _attention(config: Config) -> AttentionSpec:
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    num_kv_heads = integer(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError("num_key_value_heads", f"{num_kv_heads} do not divide the {num_heads} attention heads")
    if config.get("head_dim") is None and hidden % num_heads:
        raise ModelError(
            "num_attention_heads", f"{num_heads} do not divide hidden_size {hidden}, and no head_dim is set"
        )
    head_dim = integer(config, "head_dim", hidden // num_heads)
    return AttentionSpec(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=read_rope(config, head_dim)
    )


def _feed_forward(config: Config) -> FeedForwardSpec:
    return FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size"), activation=activation(config, "silu")
    )


def _windows_of_some(config: Config) -> Sequence[int | None]:
    """Qwen: only with use_sliding_window, then on the layers of `layer_types`, or from max_window_layers on."""
    num = num_layers(config)
    if not flag(config, "use_sliding_window", False) or config["sliding_window"] is None:
        return [None] * num
    window = integer(config, "sliding_window")
    types = config.get("layer_types")
    if types is None:
        first = count(config, "max_window_layers")
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(types, list) or len(types) != num or any(kind not in known for kind in types):
        raise ModelError("layer_types", f"must state full_attention or sliding_attention for each of {num} layers")
    return [window if kind == "sliding_attention" else None for kind in types]
