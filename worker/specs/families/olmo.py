"""OLMo 2 and 3, EXAONE 4: norms behind every part and over queries and keys."""

from dataclasses import replace
from typing import Final

from quire.worker.fields import Config, flag, integer, num_layers, shown
from quire.worker.specs.families.llama import (
    decoder,
    decoder_names,
    read_attention,
    read_feed_forward,
    read_period,
    read_sliding,
)
from quire.worker.specs.kinds.rope import of_layer_type
from quire.worker.specs.spec import AttentionSpec, LayerSpec, ModelSpec
from quire.worker.weights.parts import ModelError

NORMS: Final = {
    "post_attention_layernorm": "attention_end_norm",
    "post_feedforward_layernorm": "mlp_end_norm",
}
NAMES: Final = decoder_names(r"(model\.)?", "model.", NORMS)
OLMO_DEFAULTS: Final[Config] = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
OLMO3_DEFAULTS: Final[Config] = {**OLMO_DEFAULTS, "sliding_window": 4096}
OLMO3_THETA, OLMO3_PERIOD = 5e5, 4
EXAONE4_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}


def read_olmo2(config: Config, generation: Config) -> ModelSpec:
    config = {**OLMO_DEFAULTS, **config}
    return decoder(config, generation, (_layer(config, _olmo(config)),) * num_layers(config))


def read_olmo3(config: Config, generation: Config) -> ModelSpec:
    """Layers with a window may have a rope of their own."""
    config = {**OLMO3_DEFAULTS, **config}
    full, sliding = (
        _olmo(of_layer_type(config, kind, OLMO3_THETA)) for kind in ("full_attention", "sliding_attention")
    )
    sliding = replace(sliding, window=_window(config))
    slides = read_sliding(config, OLMO3_PERIOD)
    return decoder(config, generation, tuple(_layer(config, sliding if one else full) for one in slides))


def read_exaone4(config: Config, generation: Config) -> ModelSpec:
    """The layers with a window have the rope, and all of them where none has one."""
    config = {**EXAONE4_DEFAULTS, **config}
    attention, window = replace(read_attention(config), qk_norm="head"), _window(config)
    if window is None:
        return decoder(config, generation, (_layer(config, attention),) * num_layers(config))
    full = replace(attention, rope=attention.rope.unturned)
    sliding = replace(attention, window=window)
    slides = read_sliding(config, _period(config))
    return decoder(config, generation, tuple(_layer(config, sliding if one else full) for one in slides))


def _olmo(config: Config) -> AttentionSpec:
    bias = flag(config, "attention_bias", False)
    return replace(read_attention(config), qkv_bias=bias, output_bias=bias, qk_norm="whole")


def _layer(config: Config, attention: AttentionSpec) -> LayerSpec:
    return LayerSpec(attention=attention, feed_forward=read_feed_forward(config), norms="after")


def _window(config: Config) -> int | None:
    return None if config["sliding_window"] is None else integer(config, "sliding_window")


def _period(config: Config) -> int:
    """Layers from one with full attention to the next: a number, or as a word, "LLLG"; see `read_period`."""
    stated = config["sliding_window_pattern"]
    if isinstance(stated, str) and config.get("layer_types") is None:
        if not stated or stated != "L" * (len(stated) - 1) + "G":
            raise ModelError("sliding_window_pattern", f'must be a number, or like "LLLG", got {shown(stated)}')
        return len(stated)
    return read_period(config)
