"""Qwen3-VL: the decoder of Qwen3 with positions of three axes, and a tower whose rows it reads in its first layers, too
(DeepStack, Meng et al., 2024)."""

from dataclasses import replace
from math import isqrt
from typing import Final

from quire.worker.fields import (
    MAX_LAYERS,
    Config,
    activation,
    counts,
    dtype_name,
    inside,
    integer,
    number,
    section,
    shown,
)
from quire.worker.specs.families.llama import decoder_names, read_qwen3
from quire.worker.specs.rope import DEFAULT_THETA, read_pair_axes
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

TEXT: Final = "text_config"
VISION: Final = "vision_config"
TOWER_TENSORS: Final = r"model\.visual\..+"
"""Pattern of the tower's tensors."""
_TENSOR: Final = r"\.(?P<tensor>weight|bias)"
_BLOCK: Final = r"model\.visual\.blocks\.(?P<n>\d+)\."
_MERGER: Final = {"norm": "norm", "linear_fc1": "up", "linear_fc2": "down"}
_IN_BLOCK: Final = {
    "norm1": "attention_norm",
    r"attn\.qkv": "qkv",
    r"attn\.proj": "output",
    "norm2": "mlp_norm",
    r"mlp\.linear_fc1": "up",
    r"mlp\.linear_fc2": "down",
}
_DECODER: Final = decoder_names(r"model\.language_model\.", "model.language_model.")
NAMES: Final[NameMap] = replace(
    _DECODER,
    rules=(
        *_DECODER.rules,
        NameRule(rf"model\.visual\.patch_embed\.proj{_TENSOR}", "vision.patches.{tensor}"),
        NameRule(r"model\.visual\.pos_embed\.weight", "vision.positions.weight"),
        *(
            NameRule(_BLOCK + name + _TENSOR, f"vision.blocks.{{n}}.{own}.{{tensor}}")
            for name, own in _IN_BLOCK.items()
        ),
        *(
            NameRule(rf"model\.visual\.merger\.{name}{_TENSOR}", f"vision.merger.{own}.{{tensor}}")
            for name, own in _MERGER.items()
        ),
        *(
            NameRule(
                rf"model\.visual\.deepstack_merger_list\.(?P<n>\d+)\.{name}{_TENSOR}",
                f"vision.deepstack.{{n}}.{own}.{{tensor}}",
            )
            for name, own in _MERGER.items()
        ),
    ),
)
"""A quantization names the decoder's layers alone: the tower stays as it is."""

TEXT_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rope_theta": 500_000.0,
}
SECTIONS: Final = (24, 20, 20)
DEEPSTACK: Final = (8, 16, 24)


def read_qwen3_vl(config: Config, generation: Config) -> ModelSpec:
    text = {"eos_token_id": config.get("eos_token_id"), **TEXT_DEFAULTS, **section(config, TEXT)}
    outside = {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(text),
        "tie_word_embeddings": config.get("tie_word_embeddings"),
        "use_sliding_window": False,
    }
    with inside(TEXT):
        spec = read_qwen3({**text, **outside}, generation)
        head_dim = spec.layers[0].attention.head_dim
        axes = read_pair_axes(text, head_dim, SECTIONS, interleaved=True)
    tower = section(config, VISION)
    with inside(VISION):
        vision = _read_vision(tower)
        _refuse_other_rows(vision, spec)
    return replace(spec, layers=tuple(layer.turned_by(axes) for layer in spec.layers), vision=vision)


def _read_vision(config: Config) -> VisionSpec:
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_heads")
    if hidden % (4 * num_heads):
        raise ModelError("num_heads", f"{num_heads} do not divide hidden_size {hidden} into heads of whole fours")
    if (channels := integer(config, "in_channels", CHANNELS)) != CHANNELS:
        raise ModelError("in_channels", f"images have {CHANNELS}: red, green and blue, got {channels}")
    positions = integer(config, "num_position_embeddings", 2304)
    side = isqrt(positions)
    if side * side != positions:
        raise ModelError("num_position_embeddings", f"must be those of a square grid, got {positions}")
    return VisionSpec(
        num_blocks=integer(config, "depth", most=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_heads=num_heads,
        output_size=integer(config, "out_hidden_size"),
        patch_size=integer(config, "patch_size", 16),
        temporal_patch_size=integer(config, "temporal_patch_size", 2),
        merge_size=integer(config, "spatial_merge_size", 2),
        grid_side=side,
        deepstack=counts(config, "deepstack_visual_indexes", DEEPSTACK, most=MAX_LAYERS),
        activation=activation(config, "gelu_pytorch_tanh"),
        rope_theta=_theta(config),
    )


def _theta(config: Config) -> float:
    stated = config.get("rope_parameters")
    if stated is None:
        return DEFAULT_THETA
    rope = section(config, "rope_parameters")
    if (kind := rope.get("rope_type", "axial")) not in ("axial", "default"):
        raise ModelError("rope_parameters", f"rope_type {shown(kind)} is not supported; supported: axial")
    return number(rope, "rope_theta", DEFAULT_THETA)


def _refuse_other_rows(vision: VisionSpec, text: ModelSpec) -> None:
    """Raises ModelError for rows that do not fit the decoder."""
    if vision.output_size != text.hidden_size:
        message = f"must be the decoder's hidden_size {text.hidden_size}, got {vision.output_size}"
        raise ModelError("out_hidden_size", message)
    blocks = vision.deepstack
    if list(blocks) != sorted(set(blocks)) or any(block >= vision.num_blocks for block in blocks):
        message = f"must be blocks of the {vision.num_blocks} in order, each once, got {shown(list(blocks))}"
        raise ModelError("deepstack_visual_indexes", message)
    if len(blocks) > len(text.layers):
        message = f"names {len(blocks)} blocks, but the decoder has {len(text.layers)} layers to add their rows behind"
        raise ModelError("deepstack_visual_indexes", message)
