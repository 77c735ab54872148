"""GLM-4.5, dots.llm1, MiniMax-M2 and ERNIE 4.5: ordinary attention, and experts of which a bias chooses.

The bias decides with the scores who is chosen, and counts for nothing else. GLM and dots choose as DeepSeek-V3 does:
by sigmoids, and first among groups of experts.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from quire.worker.fields import MAX_EXPERTS, Config, count, flag, integer, num_layers, number, shown
from quire.worker.specs.families import llama
from quire.worker.specs.families.llama import decoder, read_attention, read_feed_forward
from quire.worker.specs.routed import experts
from quire.worker.specs.spec import AttentionSpec, ExpertsSpec, FeedForwardSpec, LayerSpec, ModelSpec
from quire.worker.weights.layout import one_row
from quire.worker.weights.names import NameRule
from quire.worker.weights.parts import ModelError

GLM4_MOE_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
DOTS1_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "max_window_layers": 62,
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1408,
}
MINIMAX_M2_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 196_608,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}
MINIMAX_THETA: Final = 5e6
ERNIE4_5_MOE_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
ERNIE_THETA: Final = 5e5
"""Values that transformers takes for a key that config.json leaves out."""
SCORES: Final = ("sigmoid", "noaux_tc")
"""Names of scores by sigmoids: dots.llm1 also goes by that of DeepSeek-V3's whole way to choose by them."""
MOST_NORM_MIN: Final = 1e-6
"""The sum of the best scores of a softmax does not come near it."""

_LAYER: Final = r"(model\.)?layers\.(?P<n>\d+)\."
_HERE: Final = "blocks.{n}.mlp."
_BIAS: Final = r"e_score_correction_bias"


def glm_rules(layer: str) -> tuple[NameRule, ...]:
    """Rules for the router's bias and the experts of all tokens. `layer`: see `experts.qwen_rules`."""
    shared = rf"{layer}mlp\.shared_experts\."
    return (
        NameRule(rf"{layer}(mlp|mlp\.gate|block_sparse_moe)\.{_BIAS}", _HERE + "router.bias"),
        NameRule(rf"{shared}(?P<part>gate|up)_proj\.(?P<tensor>\w+)", _HERE + "shared.gate_up.{part}.{tensor}"),
        NameRule(rf"{shared}down_proj\.(?P<tensor>\w+)", _HERE + "shared.down.{tensor}"),
    )


NAMES: Final = replace(
    experts.NAMES,
    rules=(
        *experts.NAMES.rules,
        *glm_rules(_LAYER),
        NameRule(rf"{_LAYER}mlp\.(gate\.)?moe_statics\.{_BIAS}", _HERE + "router.bias", layout=one_row),
    ),
    linear=(
        *llama.NAMES.linear,
        *(f"model.layers.{{n}}.mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")),
        *experts.LINEAR,
    ),
)
MINIMAX_NAMES: Final = replace(NAMES, linear=experts.MIXTRAL_NAMES.linear)
ERNIE_NAMES: Final = NAMES.ignoring(r"(model\.)?mtp_.+")


def read_glm4_moe(config: Config, generation: Config) -> ModelSpec:
    """Half of each head rotates; only the first layers are dense."""
    config = {**GLM4_MOE_DEFAULTS, **config}
    attention = replace(
        read_attention(config, partial=0.5),
        qkv_bias=flag(config, "attention_bias", False),
        qk_norm="head" if flag(config, "use_qk_norm", False) else "",
    )
    return _behind_dense(config, generation, [attention] * num_layers(config))


def read_dots1(config: Config, generation: Config) -> ModelSpec:
    config = {**DOTS1_DEFAULTS, **config, "use_sliding_window": True}
    bias = flag(config, "attention_bias", False)
    attention = replace(read_attention(config), qk_norm="head", qkv_bias=bias, output_bias=bias)
    windows = llama.windows_of_some(config)
    return _behind_dense(config, generation, [replace(attention, window=window) for window in windows])


def read_minimax_m2(config: Config, generation: Config) -> ModelSpec:
    """Queries and keys are normalised over all heads together; `rotary_dim` says what of each rotates."""
    config = {**MINIMAX_M2_DEFAULTS, **config}
    rotating = integer(config, "rotary_dim", integer(config, "head_dim")) / integer(config, "head_dim")
    attention = replace(read_attention(config, partial=rotating, theta=MINIMAX_THETA), qk_norm="whole")
    routed = _by_sigmoids(config, experts.read_experts(config, "intermediate_size", 256, renormalize=True))
    layer = LayerSpec(attention=attention, feed_forward=routed)
    return decoder(config, generation, (layer,) * num_layers(config))


def read_ernie4_5_moe(config: Config, generation: Config) -> ModelSpec:
    """The scores are a softmax; the rope's pairs lie side by side."""
    config = {**ERNIE4_5_MOE_DEFAULTS, **config}
    if flag(config, "use_bias", False):
        raise ModelError("use_bias", "biases beside experts are not supported: only models without them are served")
    if number(config, "moe_norm_min", MOST_NORM_MIN) > MOST_NORM_MIN:
        message = f"must be at most {MOST_NORM_MIN}: weights of experts are divided by their sum, however small it is"
        raise ModelError("moe_norm_min", message)
    attention = read_attention(config, theta=ERNIE_THETA, interleaved=True)
    num_experts = integer(config, "moe_num_experts", most=MAX_EXPERTS)
    named = {**config, "num_experts": num_experts, "num_experts_per_tok": integer(config, "moe_k", most=num_experts)}
    routed = replace(
        experts.read_experts(named, "moe_intermediate_size", 64, renormalize=True),
        biased=True,
        shared=_shared(config, "moe_num_shared_experts"),
    )
    num, first, step = num_layers(config), count(config, "moe_layer_start_index"), integer(config, "moe_layer_interval")
    last = num - 1 if config["moe_layer_end_index"] == -1 else count(config, "moe_layer_end_index")
    sparse = (first <= layer <= last and (layer + 1) % step == 0 for layer in range(num))
    return decoder(config, generation, _layers(config, [attention] * num, routed, sparse))


def _behind_dense(config: Config, generation: Config, attentions: list[AttentionSpec]) -> ModelSpec:
    """Experts chosen as DeepSeek-V3's are, in all layers behind the first `first_k_dense_replace`."""
    named = {**config, "num_experts": integer(config, "n_routed_experts", most=MAX_EXPERTS)}
    renormalize = flag(config, "norm_topk_prob", False)
    routed = experts.read_experts(named, "moe_intermediate_size", 0, renormalize=renormalize)
    groups, top_groups = integer(config, "n_group", 1), integer(config, "topk_group", 1)
    size = routed.num_experts // groups
    if routed.num_experts % groups or size < 2:
        message = f"{routed.num_experts} experts do not make {groups} groups of equally many, two or more"
        raise ModelError("n_group", message)
    if top_groups > groups or routed.top_k > size * top_groups:
        message = f"{routed.top_k} experts cannot be chosen of {top_groups} of {groups} groups of {size}"
        raise ModelError("topk_group", message)
    routed = replace(
        _by_sigmoids(config, routed),
        scale=number(config, "routed_scaling_factor", 1.0),
        num_groups=groups,
        top_groups=top_groups,
        shared=_shared(config, "n_shared_experts"),
    )
    first = count(config, "first_k_dense_replace")
    sparse = (layer >= first for layer in range(len(attentions)))
    return decoder(config, generation, _layers(config, attentions, routed, sparse))


def _layers(
    config: Config, attentions: list[AttentionSpec], routed: ExpertsSpec, sparse: Iterable[bool]
) -> tuple[LayerSpec, ...]:
    dense = read_feed_forward(config)
    return tuple(
        LayerSpec(attention=attention, feed_forward=routed if is_sparse else dense)
        for attention, is_sparse in zip(attentions, sparse, strict=True)
    )


def _shared(config: Config, name: str) -> FeedForwardSpec | None:
    """The experts of all tokens, as one as wide as they are together."""
    num = count(config, name)
    if not num:
        return None
    return replace(read_feed_forward(config), intermediate_size=num * integer(config, "moe_intermediate_size"))


def _by_sigmoids(config: Config, routed: ExpertsSpec) -> ExpertsSpec:
    stated = config.get("scoring_func") or SCORES[0]
    if stated not in SCORES:
        raise ModelError("scoring_func", f"{shown(stated)} is not supported; supported: {', '.join(SCORES)}")
    return replace(routed, scores="sigmoid", biased=True)
