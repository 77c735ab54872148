"""Gemma 3n, whose images and sounds are not read: several residual streams, gates that are mostly zeros, and last
layers that read another's keys."""

import math
from dataclasses import replace
from typing import Final

from quire.worker.fields import Config, activation, count, flag, integer, num_layers, number, shown
from quire.worker.specs.families import gemma4
from quire.worker.specs.families.gemma import FULL_THETA, NORMS, WINDOW_THETA
from quire.worker.specs.families.llama import decoder, decoder_names, read_attention, read_sliding
from quire.worker.specs.kinds.rope import of_layer_type
from quire.worker.specs.kinds.streams import StreamsSpec
from quire.worker.specs.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

MOST_STREAMS: Final = 16


def _names(prefix: str, called: str) -> NameMap:
    found = gemma4.with_inputs(decoder_names(prefix, called, NORMS), prefix, called)
    layer, altup = rf"{prefix}layers\.(?P<n>\d+)\.", "blocks.{n}.altup."
    rules = (
        NameRule(rf"{layer}altup\.router_norm\.weight", f"{altup}norm.weight"),
        NameRule(rf"{layer}altup\.modality_router\.weight", f"{altup}router"),
        NameRule(rf"{layer}altup\.(?P<kind>prediction|correction)_coefs\.weight", f"{altup}{{kind}}"),
        NameRule(rf"{layer}altup\.correct_output_scale", f"{altup}gains"),
        NameRule(rf"{layer}laurel\.linear_(?P<side>left|right)\.(?P<tensor>\w+)", "blocks.{n}.laurel.{side}.{tensor}"),
        NameRule(rf"{layer}laurel\.post_laurel_norm\.weight", "blocks.{n}.laurel.norm.weight"),
        NameRule(rf"{prefix}altup_projections\.(?P<part>\d+)\.(?P<tensor>\w+)", "streams.spread.{part}.{tensor}"),
        NameRule(rf"{prefix}altup_unembed_projections\.(?P<n>\d+)\.(?P<tensor>\w+)", "streams.gather.{n}.{tensor}"),
    )
    linear = (
        *(f"{called}layers.{{n}}.laurel.linear_{side}" for side in ("left", "right")),
        *(f"{called}altup_{end}projections.{n}" for end in ("", "unembed_") for n in range(MOST_STREAMS - 1)),
    )
    return replace(found, rules=(*found.rules, *rules), linear=(*found.linear, *linear))


NAMES: Final = _names(r"(model\.)?", "model.")
WRAPPED: Final = (
    _names(r"model\.language_model\.", "model.language_model."),
    r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\..+",
)
"""Names of a model with towers, and the pattern of the tensors of these."""
DEFAULTS: Final[Config] = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "altup_active_idx": 0,
    "altup_num_inputs": 4,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}
PERIOD: Final = 5
"""Every fifth layer sees everything where `layer_types` does not say."""
SPARSE_LAYERS, SPARSITY = 10, 0.95
"""The first layers' where a deeper model states none."""


def read_gemma3n(config: Config, generation: Config) -> ModelSpec:
    return _decoder({**DEFAULTS, **config}, generation)


def read_wrapped(config: Config, generation: Config) -> ModelSpec:
    """The text of a model that has towers."""
    return gemma4.read_text(config, generation, DEFAULTS, _decoder)


def _decoder(config: Config, generation: Config) -> ModelSpec:
    cap = config.get("final_logit_softcapping")
    spec = decoder(config, generation, _layers(config), NormSpec(number(config, "rms_norm_eps", 1e-6), "rms_wide"))
    return replace(
        spec,
        embedding_scale=math.sqrt(spec.hidden_size),
        logit_cap=None if cap is None else number(config, "final_logit_softcapping"),
        streams=_streams(config),
    )


def _streams(config: Config) -> StreamsSpec:
    """Raises ModelError."""
    streams, active = integer(config, "altup_num_inputs", most=MOST_STREAMS), count(config, "altup_active_idx")
    if streams < 2:
        raise ModelError("altup_num_inputs", f"must be from 2 to {MOST_STREAMS}, got {streams}")
    if active >= streams:
        raise ModelError("altup_active_idx", f"must be the number of one of {streams} streams, from 0, got {active}")
    return StreamsSpec(
        count=streams,
        active=active,
        scaled=flag(config, "altup_correct_scale", True),
        laurel_rank=integer(config, "laurel_rank"),
    )


def _layers(config: Config) -> tuple[LayerSpec, ...]:
    slides = read_sliding(config, PERIOD)
    num_sharing = count(config, "num_kv_shared_layers")
    num_keeping = len(slides) - (num_sharing if num_sharing <= len(slides) else 0)  # so few layers share nothing
    kind = activation(config, "gelu_pytorch_tanh", "hidden_activation")
    given = gemma4.read_input(config, kind)
    layers: list[LayerSpec] = []
    for place, (is_sliding, inner, sparsity) in enumerate(zip(slides, _inner(config), _sparsity(config), strict=True)):
        feed_forward = FeedForwardSpec(intermediate_size=inner, activation=kind, sparsity=sparsity)
        attention = _attention(config, is_sliding)
        layer = LayerSpec(attention=attention, feed_forward=feed_forward, norms="both", input=given)
        if place >= num_keeping:
            layer = gemma4.reading(layer, gemma4.source(slides, num_keeping, is_sliding), layers)
        layers.append(layer)
    return tuple(layers)


def _inner(config: Config) -> list[int]:
    """The inner size of each layer's feed-forward: one for all, or a list. Raises ModelError."""
    stated, num = config.get("intermediate_size"), num_layers(config)
    sizes = stated if isinstance(stated, list) else [stated] * num
    if len(sizes) != num:
        raise ModelError("intermediate_size", f"must state a size for each of {num} layers, got {len(sizes)}")
    return [integer({"intermediate_size": size}, "intermediate_size") for size in sizes]


def _sparsity(config: Config) -> list[float]:
    """The part of each layer's gate that is cut off. Raises ModelError."""
    stated, num = config.get("activation_sparsity_pattern"), num_layers(config)
    if stated is None:
        sparse = SPARSE_LAYERS if num > SPARSE_LAYERS else 0
        return [SPARSITY] * sparse + [0.0] * (num - sparse)
    parts = stated if isinstance(stated, list) else []
    if len(parts) != num or any(
        isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part < 1 for part in parts
    ):
        message = f"must state a number from 0 to below 1 for each of {num} layers, got {shown(stated)}"
        raise ModelError("activation_sparsity_pattern", message)
    return [float(part) for part in parts]


def _attention(config: Config, is_sliding: bool) -> AttentionSpec:
    kind, theta = "full_attention", FULL_THETA
    if is_sliding:
        kind, theta = "sliding_attention", number(config, "rope_local_base_freq", WINDOW_THETA)
    bias = flag(config, "attention_bias", False)
    return replace(
        read_attention(of_layer_type(config, kind, theta)),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        value_norm=True,
        score_scale=1.0,
        window=integer(config, "sliding_window") if is_sliding else None,
    )
