"""Llama, Mistral, Ministral 3, Qwen2 and Qwen3: decoders that differ in their windows, biases and norms of heads."""

from collections.abc import Mapping, Sequence
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
)
from quire.worker.specs.head_spec import HeadShape
from quire.worker.specs.kinds.ends import stated_ends
from quire.worker.specs.kinds.rope import DEFAULT_THETA, STRETCHED, max_model_len, read_rope, rope_parameters
from quire.worker.specs.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec
from quire.worker.weights.layout import PairsApart
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

QKV: Final = "blocks.{n}.attention.qkv.{part}.{tensor}"
GATE_UP: Final = "blocks.{n}.mlp.gate_up.{part}.{tensor}"
NORMS_BEFORE: Final = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
"""A checkpoint's names for the norms of a block -> ours."""


def decoder_names(
    prefix: str, called: str, norms: Mapping[str, str] = NORMS_BEFORE, fused: tuple[str, ...] = ()
) -> NameMap:
    """The names of a decoder. `prefix`: pattern of what stands before its tensors; `called`: before its layers, where
    a quantization calls them; `norms`: the checkpoint's names for those of a block; `fused`: "qkv", "gate_up" where one
    tensor holds them."""
    layer = rf"{prefix}layers\.(?P<n>\d+)\."
    attended = ["qkv", "o"] if "qkv" in fused else [*"qkvo"]
    fed = ["gate_up", "down"] if "gate_up" in fused else ["gate", "up", "down"]
    return NameMap(
        (
            NameRule(rf"{prefix}embed_tokens\.(?P<tensor>\w+)", "embedding.{tensor}"),
            NameRule(rf"{prefix}norm\.weight", "norm.weight"),
            NameRule(r"lm_head\.(?P<tensor>\w+)", "head.{tensor}"),
            NameRule(r"score\.(?P<tensor>weight|bias)", "classifier.output.{tensor}"),
            *(NameRule(rf"{layer}{name}\.weight", f"blocks.{{n}}.{own}.weight") for name, own in norms.items()),
            NameRule(rf"{layer}self_attn\.(?P<part>[qkv])_proj\.(?P<tensor>\w+)", QKV),
            NameRule(rf"{layer}self_attn\.qkv_proj\.(?P<tensor>\w+)", QKV, ("q", "k", "v")),
            NameRule(rf"{layer}self_attn\.o_proj\.(?P<tensor>\w+)", "blocks.{n}.attention.output.{tensor}"),
            NameRule(rf"{layer}self_attn\.q_norm\.weight", "blocks.{n}.attention.query_norm.weight"),
            NameRule(rf"{layer}self_attn\.k_norm\.weight", "blocks.{n}.attention.key_norm.weight"),
            NameRule(rf"{layer}mlp\.(?P<part>gate|up)_proj\.(?P<tensor>\w+)", GATE_UP),
            NameRule(rf"{layer}mlp\.gate_up_proj\.(?P<tensor>\w+)", GATE_UP, ("gate", "up")),
            NameRule(rf"{layer}mlp\.down_proj\.(?P<tensor>\w+)", "blocks.{n}.mlp.down.{tensor}"),
        ),
        ignored=(rf"{prefix}layers\.\d+\.self_attn\.rotary_emb\.inv_freq", rf"{prefix}rotary_emb\.inv_freq"),
        linear=(
            *(f"{called}layers.{{n}}.self_attn.{part}_proj" for part in attended),
            *(f"{called}layers.{{n}}.mlp.{part}_proj" for part in fed),
            "lm_head",
        ),
    )


NAMES: Final = decoder_names(r"(model\.)?", "model.")
"""A checkpoint of the model without its head leaves out the prefix."""
CLASSIFIER: Final = HeadShape(dense=False, bias=False, tensors=r"score\.weight")
TOKEN_CLASSIFIER: Final = HeadShape(dense=False, bias=True, tensors=r"score\.(weight|bias)", by_token=True)

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
ORIGINAL_LENGTH: Final = "original_max_position_embeddings"
MINISTRAL3_ROPE: Final[Config] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    ORIGINAL_LENGTH: 16_384,
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
    attention = replace(read_attention(config), qkv_bias=bias, output_bias=bias)
    feed_forward = replace(read_feed_forward(config), bias=flag(config, "mlp_bias", False))
    return _decoder(config, generation, attention, feed_forward, [None] * num_layers(config))


def read_mistral(config: Config, generation: Config) -> ModelSpec:
    config = {**MISTRAL_DEFAULTS, **config}
    window = None if config["sliding_window"] is None else integer(config, "sliding_window")
    windows = [window] * num_layers(config)
    return _decoder(config, generation, read_attention(config), read_feed_forward(config), windows)


def read_ministral3(config: Config, generation: Config) -> ModelSpec:
    """Beyond the length of its training the queries grow with their position."""
    config = {**MINISTRAL3_DEFAULTS, **config}
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        config["rope_parameters"] = MINISTRAL3_ROPE
    spec = read_mistral(config, generation)
    stated, rope = rope_parameters(config), spec.layers[0].attention.rope
    if stated.get(QUERY_BETA) in (None, 0):  # published as 0.0 where they do not grow
        return spec
    beta = number(stated, QUERY_BETA)
    length = rope.original_max_position if rope.type in STRETCHED else integer(stated, ORIGINAL_LENGTH)
    return replace(spec, layers=tuple(layer.growing_by(beta, length) for layer in spec.layers))


def read_qwen2(config: Config, generation: Config) -> ModelSpec:
    config = {**QWEN2_DEFAULTS, **config}
    attention = replace(read_attention(config), qkv_bias=True)
    return _decoder(config, generation, attention, read_feed_forward(config), windows_of_some(config))


def read_qwen3(config: Config, generation: Config) -> ModelSpec:
    config = {**QWEN3_DEFAULTS, **config}
    bias = flag(config, "attention_bias", False)
    attention = replace(read_attention(config), qk_norm="head", qkv_bias=bias, output_bias=bias)
    return _decoder(config, generation, attention, read_feed_forward(config), windows_of_some(config))


def _decoder(
    config: Config,
    generation: Config,
    attention: AttentionSpec,
    feed_forward: FeedForwardSpec,
    windows: Sequence[int | None],
) -> ModelSpec:
    """A decoder of layers that differ in their windows."""
    layers = (LayerSpec(attention=replace(attention, window=window), feed_forward=feed_forward) for window in windows)
    return decoder(config, generation, tuple(layers))


def decoder(
    config: Config, generation: Config, layers: tuple[LayerSpec, ...], norm: NormSpec | None = None
) -> ModelSpec:
    """A decoder of these layers; `generation` is generation_config.json, empty without one."""
    max_position = integer(config, "max_position_embeddings")
    return ModelSpec(
        architecture=config["architectures"][0],
        vocab_size=integer(config, "vocab_size"),
        hidden_size=integer(config, "hidden_size"),
        layers=layers,
        norm=norm or NormSpec(number(config, "rms_norm_eps", 1e-6)),
        tied_embeddings=flag(config, "tie_word_embeddings", False),
        max_model_len=max(max_model_len(layer.attention.rope, max_position) for layer in layers),
        dtype=checkpoint_dtype(config),
        eos_token_ids=stated_ends(config, generation),
    )


def read_attention(
    config: Config, *, partial: float | None = None, theta: float = DEFAULT_THETA, interleaved: bool = False
) -> AttentionSpec:
    """Attention whose heads and rope a config states; see `read_rope`. `interleaved`: pairs lie side by side."""
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    num_kv_heads = integer(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError("num_key_value_heads", f"{num_kv_heads} do not divide the {num_heads} attention heads")
    if config.get("head_dim") is None and hidden % num_heads:
        raise ModelError(
            "num_attention_heads", f"{num_heads} do not divide hidden_size {hidden}, and no head_dim is set"
        )
    head_dim = integer(config, "head_dim", hidden // num_heads)
    rope = replace(read_rope(config, head_dim, partial=partial, theta=theta), interleaved=interleaved)
    return AttentionSpec(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=rope)


def read_feed_forward(config: Config) -> FeedForwardSpec:
    """The gated feed-forward block that a config states."""
    return FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size"), activation=activation(config, "silu")
    )


def apart(names: NameMap, attention: AttentionSpec) -> NameMap:
    """The names of a checkpoint whose rotating pairs lie side by side."""
    sizes = (attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.rope.head_dim)
    return names.laid_out(QKV, PairsApart(*sizes))


def windows_of_some(config: Config) -> Sequence[int | None]:
    """Qwen: only with use_sliding_window, then on the layers of `layer_types`, or from max_window_layers on."""
    num = num_layers(config)
    if not flag(config, "use_sliding_window", False) or config["sliding_window"] is None:
        return [None] * num
    window = integer(config, "sliding_window")
    if config.get("layer_types") is None:
        first = count(config, "max_window_layers")
        return [window if layer >= first else None for layer in range(num)]
    return [window if slides else None for slides in read_sliding(config, 0)]


def read_period(config: Config) -> int:
    """Layers from one that sees everything to the next; 0 where `layer_types` says which do. Raises ModelError."""
    return 0 if config.get("layer_types") is not None else integer(config, "sliding_window_pattern")


def read_sliding(config: Config, period: int) -> list[bool]:
    """The layers that have a window: as `layer_types` says, else all but every `period`-th; 0: then none. Raises
    ModelError."""
    num, types = num_layers(config), config.get("layer_types")
    if types is None:
        return [bool(period and (layer + 1) % period) for layer in range(num)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(types, list) or len(types) != num or any(kind not in known for kind in types):
        raise ModelError("layer_types", f"must state full_attention or sliding_attention for each of {num} layers")
    return [kind == "sliding_attention" for kind in types]
