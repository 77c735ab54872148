"""SmolLM3, Granite, Seed-OSS and ERNIE 4.5: Llama's block with layers that have no rope, with factors, or with biases
of their own."""

from dataclasses import replace
from typing import Final

from quire.worker.fields import Config, count, counts, flag, integer, num_layers, number
from quire.worker.specs.families.llama import decoder, read_attention, read_feed_forward, read_sliding
from quire.worker.specs.spec import FeedForwardSpec, LayerSpec, ModelSpec
from quire.worker.weights.parts import ModelError

SMOLLM3_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "no_rope_layer_interval": 4,
}
SMOLLM3_THETA: Final = 2e6
GRANITE_DEFAULTS: Final[Config] = {"max_position_embeddings": 2048}
SEED_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524_288,
}
ERNIE_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
ERNIE_THETA: Final = 5e5


def read_smollm3(config: Config, generation: Config) -> ModelSpec:
    """Every fourth layer has no rope, unless it says which ones."""
    config = {**SMOLLM3_DEFAULTS, **config}
    num, interval = num_layers(config), count(config, "no_rope_layer_interval")
    stated = counts(config, "no_rope_layers", (), most=1)
    turning = stated or tuple(int(not interval or (layer + 1) % interval != 0) for layer in range(num))
    if len(turning) < num:
        raise ModelError("no_rope_layers", f"must state 0 or 1 for each of {num} layers, got {len(turning)}")
    bias = flag(config, "attention_bias", False)
    attention = replace(read_attention(config, theta=SMOLLM3_THETA), qkv_bias=bias, output_bias=bias)
    has_window = flag(config, "use_sliding_window", False) and config.get("sliding_window") is not None
    slides = [has_window and not turns for turns in turning]
    if config.get("layer_types") is not None:
        slides = [has_window and one for one in read_sliding(config, 0)]
    window = integer(config, "sliding_window") if has_window else None
    feed_forward = _feed_forward(config)
    layers = (
        LayerSpec(
            attention=replace(
                attention,
                rope=attention.rope if turns else attention.rope.unturned,
                window=window if slide else None,
            ),
            feed_forward=feed_forward,
        )
        for turns, slide in zip(turning[:num], slides, strict=False)
    )
    return decoder(config, generation, tuple(layers))


def read_granite(config: Config, generation: Config) -> ModelSpec:
    config = {**GRANITE_DEFAULTS, **config}
    bias = flag(config, "attention_bias", False)
    scale = number(config, "attention_multiplier", 1.0)
    attention = replace(read_attention(config), qkv_bias=bias, output_bias=bias, score_scale=scale)
    layer = LayerSpec(attention=attention, feed_forward=_feed_forward(config))
    return replace(
        decoder(config, generation, (layer,) * num_layers(config)),
        embedding_scale=number(config, "embedding_multiplier", 1.0),
        residual_scale=number(config, "residual_multiplier", 1.0),
        logit_scale=1 / number(config, "logits_scaling", 1.0),
    )


def read_seed_oss(config: Config, generation: Config) -> ModelSpec:
    config = {**SEED_DEFAULTS, **config}
    attention = replace(
        read_attention(config),
        qkv_bias=flag(config, "attention_bias", True),
        output_bias=flag(config, "attention_out_bias", False),
    )
    layer = LayerSpec(attention=attention, feed_forward=_feed_forward(config))
    return decoder(config, generation, (layer,) * num_layers(config))


def read_ernie4_5(config: Config, generation: Config) -> ModelSpec:
    config = {**ERNIE_DEFAULTS, **config}
    bias = flag(config, "use_bias", False)
    attention = read_attention(config, theta=ERNIE_THETA, interleaved=True)
    attention = replace(attention, qkv_bias=bias, output_bias=bias)
    layer = LayerSpec(attention=attention, feed_forward=replace(read_feed_forward(config), bias=bias))
    return decoder(config, generation, (layer,) * num_layers(config))


def _feed_forward(config: Config) -> FeedForwardSpec:
    return replace(read_feed_forward(config), bias=flag(config, "mlp_bias", False))
