"""Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE: Llama's relatives with experts in place of feed-forward blocks."""

from dataclasses import replace
from typing import Final

from quire.worker.fields import MAX_EXPERTS, Config, activation, count, counts, flag, integer, num_layers
from quire.worker.specs.families import llama
from quire.worker.specs.kinds.expert_names import DOWN, GATE_UP, linear_of_each, of_all_by_part, of_each
from quire.worker.specs.spec import ExpertsSpec, FeedForwardSpec, LayerSpec, ModelSpec
from quire.worker.weights.names import NameRule
from quire.worker.weights.parts import ModelError

MIXTRAL_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "num_experts_per_tok": 2,
}
OLMOE_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 8,
}
QWEN2_MOE_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
}
QWEN3_MOE_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
}
"""Values that transformers takes for a key that config.json leaves out."""

_LAYER: Final = r"(model\.)?layers\.(?P<n>\d+)\."
_MIXTRAL: Final = rf"{_LAYER}block_sparse_moe\."
_HERE: Final = "blocks.{n}.mlp."
MIXTRAL_MATRICES: Final = {"w1": GATE_UP.replace("{part}", "gate"), "w3": GATE_UP.replace("{part}", "up"), "w2": DOWN}
"""Names of an expert's matrices in Mixtral, and their targets."""
MIXTRAL_LINEAR: Final = tuple(f"model.layers.{{n}}.block_sparse_moe.experts.{{e}}.{name}" for name in MIXTRAL_MATRICES)
LINEAR: Final = linear_of_each("model.layers.{n}.mlp.")


def qwen_rules(layer: str) -> tuple[NameRule, ...]:
    """Rules for experts with a tensor each. `layer`: pattern of what stands before the tensors of a layer."""
    return (NameRule(rf"{layer}mlp\.gate\.weight", _HERE + "router.experts.weight"), *of_each(rf"{layer}mlp\."))


NAMES: Final = replace(
    llama.NAMES,
    rules=(
        *llama.NAMES.rules,
        *qwen_rules(_LAYER),
        *of_all_by_part(rf"{_LAYER}mlp\."),
        *(
            NameRule(rf"{_MIXTRAL}experts\.(?P<e>\d+)\.{name}\.(?P<tensor>\w+)", target)
            for name, target in MIXTRAL_MATRICES.items()
        ),
        NameRule(rf"{_MIXTRAL}gate\.weight", _HERE + "router.experts.weight"),
        NameRule(rf"{_LAYER}mlp\.shared_expert_gate\.weight", _HERE + "router.shared.weight"),
        NameRule(
            rf"{_LAYER}mlp\.shared_expert\.(?P<part>gate|up)_proj\.(?P<tensor>\w+)",
            _HERE + "shared.gate_up.{part}.{tensor}",
        ),
        NameRule(rf"{_LAYER}mlp\.shared_expert\.down_proj\.(?P<tensor>\w+)", _HERE + "shared.down.{tensor}"),
    ),
    linear=(
        *llama.NAMES.linear,
        *(f"model.layers.{{n}}.mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")),
        *LINEAR,
    ),
)
MIXTRAL_NAMES: Final = replace(NAMES, linear=(*llama.NAMES.linear, *MIXTRAL_LINEAR))


def read_mixtral(config: Config, generation: Config) -> ModelSpec:
    config = {**MIXTRAL_DEFAULTS, **config}
    spec = llama.read_mistral(config, generation)
    return _everywhere(spec, read_experts(config, "intermediate_size", 8, renormalize=True))


def read_olmoe(config: Config, generation: Config) -> ModelSpec:
    """Queries and keys are normalised over all heads together."""
    config = {**OLMOE_DEFAULTS, **config}
    if config.get("clip_qkv") is not None:
        raise ModelError("clip_qkv", f"{config['clip_qkv']} is not supported: only models that clip nothing are served")
    spec = llama.read_llama({**config, "mlp_bias": False}, generation)
    layers = tuple(replace(layer, attention=replace(layer.attention, qk_norm="whole")) for layer in spec.layers)
    experts = read_experts(config, "intermediate_size", 64, renormalize=flag(config, "norm_topk_prob", False))
    return _everywhere(replace(spec, layers=layers), experts)


def read_qwen2_moe(config: Config, generation: Config) -> ModelSpec:
    """One more expert takes every token, and counts by the sigmoid of a logit of its own."""
    config = {**llama.QWEN2_DEFAULTS, **QWEN2_MOE_DEFAULTS, **config}
    spec = llama.read_qwen2(_with_layer_types(config), generation)
    bias = flag(config, "qkv_bias", True)
    layers = tuple(replace(layer, attention=replace(layer.attention, qkv_bias=bias)) for layer in spec.layers)
    shared = FeedForwardSpec(
        intermediate_size=integer(config, "shared_expert_intermediate_size"), activation=activation(config, "silu")
    )
    experts = replace(_of_qwen(config, 60), shared=shared, shared_gate=True)
    return _of_some(replace(spec, layers=layers), config, experts)


def read_qwen3_moe(config: Config, generation: Config) -> ModelSpec:
    """Its window, where there is one, is that of all layers."""
    config = {**llama.QWEN3_DEFAULTS, **QWEN3_MOE_DEFAULTS, **config, "max_window_layers": 0, "layer_types": None}
    return _of_some(llama.read_qwen3(config, generation), config, _of_qwen(config, 128))


def _with_layer_types(config: Config) -> Config:
    """Qwen2-MoE slides on every other of the first `max_window_layers`, where the kinds of layers are left out."""
    if config.get("layer_types") is not None or not flag(config, "use_sliding_window", False):
        return config
    first = count(config, "max_window_layers")
    kinds = [
        "sliding_attention" if number % 2 == 0 and number < first else "full_attention"
        for number in range(num_layers(config))
    ]
    return {**config, "layer_types": kinds}


def _of_qwen(config: Config, left_out: int) -> ExpertsSpec:
    return read_experts(config, "moe_intermediate_size", left_out, renormalize=flag(config, "norm_topk_prob", False))


def read_experts(config: Config, axis: str, left_out: int, *, renormalize: bool) -> ExpertsSpec:
    """The experts of a config; `left_out`: how many there are where it does not say."""
    total = "num_experts" if config.get("num_experts") is not None else "num_local_experts"  # it is saved as either
    num_experts, top_k = integer(config, total, left_out, most=MAX_EXPERTS), integer(config, "num_experts_per_tok")
    if top_k > num_experts:
        raise ModelError("num_experts_per_tok", f"{top_k} cannot be chosen of {num_experts} experts")
    return ExpertsSpec(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=integer(config, axis),
        axis=axis,
        activation=activation(config, "silu"),
        renormalize=renormalize,
    )


def _everywhere(spec: ModelSpec, experts: ExpertsSpec) -> ModelSpec:
    return replace(spec, layers=tuple(replace(layer, feed_forward=experts) for layer in spec.layers))


def _of_some(spec: ModelSpec, config: Config, experts: ExpertsSpec) -> ModelSpec:
    """The experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name."""
    step, dense = integer(config, "decoder_sparse_step", 1), counts(config, "mlp_only_layers", (), len(spec.layers))

    def of(number: int, layer: LayerSpec) -> LayerSpec:
        return layer if number in dense or (number + 1) % step else replace(layer, feed_forward=experts)

    return replace(spec, layers=tuple(of(number, layer) for number, layer in enumerate(spec.layers)))
