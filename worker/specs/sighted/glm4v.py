"""GLM-4.1V, 4.5V and 4.6V (GLM-V Team, 2025): the decoder of GLM-4, or of GLM-4.5 with its experts, with positions of
three axes, and a tower with learned positions and rotary ones."""

from dataclasses import dataclass, replace
from typing import Any, Final

from quire.worker.fields import Config, Gate, activation, dtype_name, flag, inside, integer, number, section, shown
from quire.worker.specs.families.llama import decoder_names
from quire.worker.specs.families.phi import GLM4_NORMS, read_glm4
from quire.worker.specs.kinds.expert_names import linear_of_each, of_all
from quire.worker.specs.kinds.rope import read_pair_axes
from quire.worker.specs.routed import biased, experts
from quire.worker.specs.sighted.qwen_vl import (
    TENSOR,
    TEXT,
    VISION,
    QwenVisionSpec,
    refuse_other_width,
    tower_rules,
    tower_sizes,
)
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import linear_elements, shared_linear_elements
from quire.worker.weights.layout import stacked
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

_VISUAL: Final = r"(model\.)?visual\."
TOWER_TENSORS: Final = rf"{_VISUAL}.+"
"""Pattern of the tower's tensors."""
_IN_BLOCK: Final = {
    "norm1": "attention_norm",
    r"attn\.proj": "output",
    "norm2": "mlp_norm",
    r"mlp\.(?P<part>gate|up)_proj": "mlp.gate_up.{part}",
    r"mlp\.down_proj": "mlp.down",
}
_MERGER: Final = {
    "proj": "projection",
    "post_projection_norm": "norm",
    r"(?P<part>gate|up)_proj": "gate_up.{part}",
    "down_proj": "down",
}
_TOWER: Final = {
    r"post_conv_layernorm\.weight": "patch_norm.weight",
    r"embeddings\.position_embedding\.weight": "positions.weight",
    r"post_layernorm\.weight": "norm.weight",
    rf"downsample{TENSOR}": "downsample.{tensor}",
}


def _names(decoder: NameMap, *rules: NameRule) -> NameMap:
    """The names of a model. A quantization names the decoder's layers alone: the tower stays as it is."""
    return replace(
        decoder,
        rules=(
            *decoder.rules,
            *rules,
            *tower_rules(_VISUAL, _IN_BLOCK, _MERGER),
            *(NameRule(_VISUAL + name, f"vision.{own}") for name, own in _TOWER.items()),
        ),
    )


_TEXT: Final = r"model\.(language_model\.)?", "model.language_model."
NAMES: Final[NameMap] = _names(decoder_names(*_TEXT, GLM4_NORMS, fused=("gate_up",)))
_LAYER: Final = r"model\.(language_model\.)?layers\.(?P<n>\d+)\."
_ROUTED: Final = _names(decoder_names(*_TEXT), *experts.qwen_rules(_LAYER), *biased.glm_rules(_LAYER))
MOE_NAMES: Final[NameMap] = replace(
    _ROUTED,
    linear=(
        *_ROUTED.linear,
        *(f"model.language_model.layers.{{n}}.mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")),
        *linear_of_each("model.language_model.layers.{n}.mlp."),
    ),
)
EITHER_NAMES: Final[NameMap] = replace(
    MOE_NAMES,
    rules=(*MOE_NAMES.rules, *NAMES.rules, *of_all(rf"{_LAYER}mlp\.", stacked)),
    linear=tuple(dict.fromkeys((*MOE_NAMES.linear, *NAMES.linear))),
)
"""Those of a model whose decoder is either one. Transformers stores the matrices of all its experts together."""

TEXT_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
}
MOE_DEFAULTS: Final[Config] = {"max_position_embeddings": 65_536, "attention_bias": True}
SECTIONS: Final = (8, 12, 12)
DEFAULT_PIXELS: Final = 28 * 28 * 15_000
"""Most pixels of the frames of a patch where the files of the image processor leave it out."""
VISION_DEFAULTS: Final[Config] = {
    "depth": 24,
    "hidden_size": 1536,
    "num_heads": 12,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
    "image_size": 336,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmVisionSpec(QwenVisionSpec):
    """A tower whose patches are normalised, get learned positions and turn; its blocks have a gate and no biases."""

    activation: Gate
    grid_side: int
    """Learned positions of a side of their square, interpolated for items of any other grid."""
    qkv_bias: bool
    merger_size: int
    """Inner elements of the gated product that makes a row."""

    @property
    def mlp_columns(self) -> int:
        return 2

    @property
    def num_elements(self) -> int:
        hidden, inner, wide = self.hidden_size, self.intermediate_size, self.output_size
        patches = linear_elements(hidden, self.patch_numbers) + self.grid_side**2 * hidden
        attention = linear_elements(3 * hidden, hidden, bias=self.qkv_bias) + hidden**2
        block = 2 * hidden + attention + 3 * hidden * inner
        downsample = linear_elements(wide, self.merged_size)
        merger = wide**2 + 2 * wide + 3 * wide * self.merger_size
        return patches + 2 * hidden + self.num_blocks * block + downsample + merger

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3, bias=self.qkv_bias)
        mlp = shared_linear_elements(hidden, inner, columns=self.mlp_columns, bias=False)
        return self.num_blocks * (attention + mlp)

    def largest_item(self, processor: Config) -> int:
        """Bounds count pixels of all frames of a patch."""
        size = section(processor, "size") if processor.get("size") else {}
        pixels = integer(processor, "max_pixels", integer(size, "longest_edge", DEFAULT_PIXELS))
        return pixels // (self.temporal_patch_size * (self.patch_size * self.merge_size) ** 2)


def read_glm4v(config: Config, generation: Config) -> ModelSpec:
    """The pairs of the rope lie side by side; queries, keys and values always have biases."""
    text = {**TEXT_DEFAULTS, **section(config, TEXT), "head_dim": None, "attention_bias": True}
    text |= _outside(config, text)
    with inside(TEXT):
        spec = read_glm4(text, generation)
    return _with_images(config, text, spec)


def read_glm4v_moe(config: Config, generation: Config) -> ModelSpec:
    text = {**MOE_DEFAULTS, **section(config, TEXT), "use_qk_norm": False}
    text |= _outside(config, text)
    with inside(TEXT):
        spec = biased.read_glm4_moe(text, generation)
    return _with_images(config, text, spec)


def read_glm46v(config: Config, generation: Config) -> ModelSpec:
    """The section of the decoder says which one it is."""
    readers = {"glm4v_text": read_glm4v, "glm4v_moe_text": read_glm4v_moe}
    kind = section(config, TEXT).get("model_type", "glm4v_text")
    if not isinstance(kind, str) or kind not in readers:
        message = f"{shown(kind)} is not supported; supported: {', '.join(readers)}"
        raise ModelError(f"{TEXT}.model_type", message)
    return readers[kind](config, generation)


def _outside(config: Config, text: Config) -> dict[str, Any]:
    """Fields of the decoder that stand beside its section, too."""
    with inside(TEXT):
        is_tied = flag(text, "tie_word_embeddings", False)
    return {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(text),
        "tie_word_embeddings": flag(config, "tie_word_embeddings", False) or is_tied,
        "eos_token_id": text.get("eos_token_id", config.get("eos_token_id")),
    }


def _with_images(config: Config, text: Config, spec: ModelSpec) -> ModelSpec:
    with inside(TEXT):
        axes = read_pair_axes(text, spec.layers[0].attention.rope.head_dim, SECTIONS, interleaved=False)
    tower = {**VISION_DEFAULTS, **section(config, VISION)}
    with inside(VISION):
        vision = _read_vision(tower)
        refuse_other_width(vision, spec, "out_hidden_size")
    return replace(spec, layers=tuple(layer.turned_by(axes) for layer in spec.layers), vision=vision)


def _read_vision(tower: Config) -> GlmVisionSpec:
    sizes, pixels = tower_sizes(tower, "hidden_size", 14), integer(tower, "image_size")
    if pixels < sizes["patch_size"]:
        raise ModelError("image_size", f"must hold a patch of {sizes['patch_size']} pixels, got {pixels}")
    output_size = integer(tower, "out_hidden_size")
    return GlmVisionSpec(
        **sizes,
        intermediate_size=output_size,
        output_size=output_size,
        merger_size=integer(tower, "intermediate_size"),
        grid_side=pixels // sizes["patch_size"],
        qkv_bias=flag(tower, "attention_bias", False),
        activation=activation(tower, "silu"),
        norm_eps=number(tower, "rms_norm_eps", 1e-5),
    )
