"""Gemma 1, 2 and 3, whose images are not read: gains around one, scaled embeddings, norms before and (not the first)
behind every part, and windows; Gemma 2 caps scores and logits, Gemma 3 has norms of heads and two ropes."""

import math
from dataclasses import replace
from typing import Final

from quire.worker.fields import Config, activation, dtype_name, flag, inside, integer, num_layers, number, section
from quire.worker.specs.families.llama import decoder, decoder_names, read_attention, read_period, read_sliding
from quire.worker.specs.kinds.rope import of_layer_type
from quire.worker.specs.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec
from quire.worker.weights.names import NameRule
from quire.worker.weights.parts import ModelError

NORMS: Final = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_end_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_end_norm",
}
NAMES: Final = decoder_names(r"(model\.)?", "model.", NORMS)
_WRAPPED: Final = decoder_names(r"(language_model\.model|model\.language_model)\.", "model.language_model.", NORMS)
WRAPPED_NAMES: Final = replace(
    _WRAPPED, rules=(*_WRAPPED.rules, NameRule(r"language_model\.lm_head\.(?P<tensor>\w+)", "head.{tensor}"))
)
TOWER_TENSORS: Final = r"(model\.)?(vision_tower|multi_modal_projector)\..+"
_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
GEMMA_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 16,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
GEMMA2_DEFAULTS: Final[Config] = {
    **_DEFAULTS,
    "max_position_embeddings": 8192,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GEMMA3_DEFAULTS: Final[Config] = {
    **_DEFAULTS,
    "max_position_embeddings": 131_072,
    "sliding_window_pattern": 6,
}
WRAPPED_DEFAULTS: Final[Config] = {"vocab_size": 262_208, "num_attention_heads": 8}
"""Gemma 3 with images leaves them out."""
FULL_THETA, WINDOW_THETA = 1e6, 1e4
"""Gemma 3's bases where none is stated."""


def read_gemma(config: Config, generation: Config) -> ModelSpec:
    """The first one: norms before every part, and no window."""
    config = {**GEMMA_DEFAULTS, **config}
    if flag(config, "use_bidirectional_attention", False):
        raise ModelError("use_bidirectional_attention", "every token sees those before it; choose another model")
    bias = flag(config, "attention_bias", False)
    attention = replace(read_attention(config), qkv_bias=bias, output_bias=bias)
    feed_forward = FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size"), activation=activation(config, "gelu_pytorch_tanh")
    )
    layers = (LayerSpec(attention=attention, feed_forward=feed_forward),) * num_layers(config)
    spec = decoder(config, generation, layers, NormSpec(number(config, "rms_norm_eps", 1e-6), "rms_from_one"))
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


def read_gemma2(config: Config, generation: Config) -> ModelSpec:
    config = {**GEMMA2_DEFAULTS, **config}
    attention = _attention(config)
    cap = None if config["attn_logit_softcapping"] is None else number(config, "attn_logit_softcapping")
    return _decoder(config, generation, [replace(attention, soft_cap=cap)] * 2, period=2)


def read_gemma3(config: Config, generation: Config) -> ModelSpec:
    """Its length is that of the stretched context."""
    config = {**GEMMA3_DEFAULTS, **config}
    if config.get("attn_logit_softcapping") is not None:
        raise ModelError("attn_logit_softcapping", "Gemma 3 does not cap its scores; leave it out")
    bases = {"full_attention": FULL_THETA, "sliding_attention": number(config, "rope_local_base_freq", WINDOW_THETA)}
    full, sliding = (
        replace(_attention(of_layer_type(config, kind, theta)), qk_norm="head") for kind, theta in bases.items()
    )
    spec = _decoder(config, generation, [full, sliding], read_period(config))
    return replace(spec, max_model_len=integer(config, "max_position_embeddings"))


def read_wrapped_gemma3(config: Config, generation: Config) -> ModelSpec:
    """The text of a model that has a tower."""
    with inside("text_config"):
        text = {"eos_token_id": config.get("eos_token_id"), **WRAPPED_DEFAULTS, **section(config, "text_config")}
        outside = {
            "architectures": config["architectures"],
            "dtype": dtype_name(config) or dtype_name(text),
            "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
        }
        return read_gemma3({**text, **outside}, generation)


def _attention(config: Config) -> AttentionSpec:
    bias = flag(config, "attention_bias", False)
    scale = integer(config, "query_pre_attn_scalar") ** -0.5
    return replace(read_attention(config), qkv_bias=bias, output_bias=bias, score_scale=scale)


def _decoder(config: Config, generation: Config, kinds: list[AttentionSpec], period: int) -> ModelSpec:
    """`kinds`: full attention, and that of the layers that have a window, all but every `period`-th."""
    if flag(config, "use_bidirectional_attention", False):
        raise ModelError("use_bidirectional_attention", "every token sees those before it; choose another model")
    feed_forward = FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size"),
        activation=activation(config, "gelu_pytorch_tanh", "hidden_activation"),
    )
    full, sliding = kinds
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    layers = (
        LayerSpec(
            attention=replace(sliding, window=window) if slides else full, feed_forward=feed_forward, norms="both"
        )
        for slides in read_sliding(config, period)
    )
    cap = config.get("final_logit_softcapping")
    spec = decoder(config, generation, tuple(layers), NormSpec(number(config, "rms_norm_eps", 1e-6), "rms_from_one"))
    return replace(
        spec,
        embedding_scale=math.sqrt(spec.hidden_size),
        logit_cap=None if cap is None else number(config, "final_logit_softcapping"),
    )
