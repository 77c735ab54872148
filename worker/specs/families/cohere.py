"""Cohere's Command R and Command R7B: attention and feed-forward side by side behind one layer norm, scaled logits."""

from dataclasses import replace
from typing import Final

from quire.worker.fields import Config, flag, integer, num_layers, number
from quire.worker.specs.families.llama import (
    decoder,
    decoder_names,
    read_attention,
    read_feed_forward,
    read_period,
    read_sliding,
)
from quire.worker.specs.spec import AttentionSpec, LayerSpec, ModelSpec, NormSpec
from quire.worker.weights.parts import ModelError

NAMES: Final = decoder_names(r"(model\.)?", "model.", {"input_layernorm": "attention_norm"})
DEFAULTS: Final[Config] = {
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
COHERE2_DEFAULTS: Final[Config] = {**DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4}
COHERE_THETA: Final = 5e5


def read_cohere(config: Config, generation: Config) -> ModelSpec:
    config = {**DEFAULTS, **config}
    if flag(config, "use_qk_norm", False):
        raise ModelError("use_qk_norm", "layer norms of heads are not supported; choose a model without them")
    attention = _attention(read_attention(config, theta=COHERE_THETA, interleaved=True), config)
    return _decoder(config, generation, [attention] * num_layers(config))


def read_cohere2(config: Config, generation: Config) -> ModelSpec:
    """Only the layers with a window have a rope."""
    config = {**COHERE2_DEFAULTS, **config}
    attention = _attention(read_attention(config, interleaved=True), config)
    full = replace(attention, rope=attention.rope.unturned)
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    sliding = full if window is None else replace(attention, window=window)
    slides = read_sliding(config, read_period(config))
    return _decoder(config, generation, [sliding if one else full for one in slides])


def _attention(attention: AttentionSpec, config: Config) -> AttentionSpec:
    bias = flag(config, "attention_bias", False)
    return replace(attention, qkv_bias=bias, output_bias=bias)


def _decoder(config: Config, generation: Config, attentions: list[AttentionSpec]) -> ModelSpec:
    feed_forward = read_feed_forward(config)
    layers = (LayerSpec(attention=one, feed_forward=feed_forward, norms="parallel") for one in attentions)
    spec = decoder(config, generation, tuple(layers), NormSpec(number(config, "layer_norm_eps", 1e-5), "layer"))
    return replace(spec, logit_scale=number(config, "logit_scale", 0.0625))
