"""Llama 4 as text: layers that see their chunk of the context, others that see all of it and have no rope, and experts
of which each token has one beside the one of all tokens."""

from dataclasses import replace
from typing import Final

from quire.kernels.attention.window import Chunk
from quire.worker.fields import (
    MAX_EXPERTS,
    Config,
    activation,
    counts,
    dtype_name,
    flag,
    inside,
    integer,
    num_layers,
    number,
    section,
)
from quire.worker.specs.families.llama import decoder, decoder_names, read_attention
from quire.worker.specs.kinds.expert_names import linear_of_each, of_all, of_each
from quire.worker.specs.spec import AttentionSpec, ExpertsSpec, FeedForwardSpec, LayerSpec, ModelSpec
from quire.worker.weights.layout import stacked_inputs_first
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131_072,
    "intermediate_size_mlp": 16_384,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}
"""Values that transformers takes for a key that config.json leaves out."""
THETA: Final = 5e5
KINDS: Final = ("chunked_attention", "full_attention")
_FED: Final = r"feed_forward\."
_HERE: Final = "blocks.{n}.mlp."
TOWER: Final = r"(vision_model|multi_modal_projector)\..+"


def _names() -> NameMap:
    prefix = r"(language_model\.)?(model\.)?"
    layer = rf"{prefix}layers\.(?P<n>\d+)\.{_FED}"
    shared, here = rf"{layer}shared_expert\.", _HERE + "shared."
    usual = decoder_names(prefix, "model.")
    return NameMap(
        (
            *(replace(rule, pattern=rule.pattern.replace(r"mlp\.", _FED)) for rule in usual.rules),
            NameRule(r"language_model\.lm_head\.(?P<tensor>\w+)", "head.{tensor}"),
            NameRule(rf"{layer}router\.weight", _HERE + "router.experts.weight"),
            *of_all(layer, stacked_inputs_first),
            *of_each(layer),
            NameRule(rf"{shared}(?P<part>gate|up)_proj\.(?P<tensor>\w+)", here + "gate_up.{part}.{tensor}"),
            NameRule(rf"{shared}down_proj\.(?P<tensor>\w+)", here + "down.{tensor}"),
        ),
        usual.ignored,
        (
            *(name.replace(".mlp.", ".feed_forward.") for name in usual.linear),
            *(f"model.layers.{{n}}.feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")),
            *linear_of_each("model.layers.{n}.feed_forward."),
        ),
    )


NAMES: Final = _names()


def read_llama4(config: Config, generation: Config) -> ModelSpec:
    config = {**DEFAULTS, **config}
    turns, sees_chunk = _turning(config), _seeing_chunks(config)
    sparse, kinds = _sparse(config), _attention(config)
    dense = FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size_mlp"), activation=activation(config, "silu")
    )
    routed = _experts(config)
    window = Chunk(integer(config, "attention_chunk_size")) if any(sees_chunk) else None
    layers = (
        LayerSpec(
            attention=replace(kinds[turns[number]], window=window if sees_chunk[number] else None),
            feed_forward=routed if number in sparse else dense,
        )
        for number in range(num_layers(config))
    )
    return decoder(config, generation, tuple(layers))


def read_whole(config: Config, generation: Config) -> ModelSpec:
    """The text of a model that has a tower."""
    with inside("text_config"):
        text = {"eos_token_id": config.get("eos_token_id"), **section(config, "text_config")}
        outside = {
            "architectures": config["architectures"],
            "dtype": dtype_name(config) or dtype_name(text),
            "tie_word_embeddings": flag(config, "tie_word_embeddings", False),
        }
        return read_llama4({**text, **outside}, generation)


def _attention(config: Config) -> tuple[AttentionSpec, AttentionSpec]:
    """Attention of layers without a rope, whose queries may grow with their position, and of those with one.

    A rotation leaves the length of a head as it is, so heads are normalised before it; the library does so behind it.
    """
    bias = flag(config, "attention_bias", False)
    turning = replace(read_attention(config, theta=THETA, interleaved=True), qkv_bias=bias, output_bias=bias)
    still = replace(turning, rope=turning.rope.unturned)
    if bool(config.get("attn_temperature_tuning", True)):  # published as a number, too
        rope = replace(
            still.rope,
            query_beta=number(config, "attn_scale"),
            original_max_position=integer(config, "floor_scale"),
            counts_own=True,
        )
        still = replace(still, rope=rope)
    if not flag(config, "use_qk_norm", True):
        return still, turning
    if turning.rope.attention_factor != 1:
        message = f"{turning.rope.type} lengthens the heads that use_qk_norm normalises, which is not supported"
        raise ModelError("rope_type", message)
    return still, replace(turning, qk_norm="plain")


def _experts(config: Config) -> ExpertsSpec:
    feed_forward = FeedForwardSpec(
        intermediate_size=integer(config, "intermediate_size"), activation=activation(config, "silu")
    )
    if (top_k := integer(config, "num_experts_per_tok")) != 1:
        message = f"{top_k} experts of a token are not supported: what each gets is multiplied by its weight; only 1 is"
        raise ModelError("num_experts_per_tok", message)
    return ExpertsSpec(
        num_experts=integer(config, "num_local_experts", most=MAX_EXPERTS),
        top_k=1,
        intermediate_size=feed_forward.intermediate_size,
        axis="intermediate_size",
        activation=feed_forward.activation,
        scores="sigmoid",
        scales_input=True,
        shared=feed_forward,
    )


def _turning(config: Config) -> tuple[bool, ...]:
    """The layers that have a rope: all but every fourth one, unless it says which."""
    num, interval = num_layers(config), integer(config, "no_rope_layer_interval")
    stated = counts(config, "no_rope_layers", (), most=1)
    turning = stated or tuple(int((layer + 1) % interval != 0) for layer in range(num))
    if len(turning) < num:
        raise ModelError("no_rope_layers", f"must state 0 or 1 for each of {num} layers, got {len(turning)}")
    return tuple(map(bool, turning[:num]))


def _seeing_chunks(config: Config) -> tuple[bool, ...]:
    """The layers that see their chunk: as `layer_types` says, else those with a rope."""
    types, num = config.get("layer_types"), num_layers(config)
    if types is None:
        return _turning(config)
    if not isinstance(types, list) or len(types) != num or any(kind not in KINDS for kind in types):
        raise ModelError("layer_types", f"must state {' or '.join(KINDS)} for each of {num} layers")
    return tuple(kind == KINDS[0] for kind in types)


def _sparse(config: Config) -> tuple[int, ...]:
    """Numbers of the layers that have experts."""
    num, step = num_layers(config), integer(config, "interleave_moe_layer_step")
    return counts(config, "moe_layers", tuple(range(step - 1, num, step)), most=num - 1)
