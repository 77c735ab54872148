"""Qwen3-VL: the decoder of Qwen3, or of Qwen3-MoE, with positions of three axes, and a tower whose rows it reads in its
first layers, too (DeepStack, Meng et al., 2024)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Final

from quire.worker.fields import (
    MAX_LAYERS,
    Config,
    counts,
    dtype_name,
    inside,
    integer,
    section,
    shown,
    ungated_activation,
)
from quire.worker.specs.families.llama import decoder_names, read_qwen3
from quire.worker.specs.kinds.expert_names import linear_of_each, of_all
from quire.worker.specs.kinds.rope import read_pair_axes
from quire.worker.specs.routed import experts
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
from quire.worker.specs.vision_spec import linear_elements
from quire.worker.weights.layout import stacked_either_way
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

TOWER_TENSORS: Final = r"model\.visual\..+"
"""Pattern of the tower's tensors."""
_MERGER: Final = {"norm": "norm", "linear_fc1": "up", "linear_fc2": "down"}
_IN_BLOCK: Final = {
    "norm1": "attention_norm",
    r"attn\.proj": "output",
    "norm2": "mlp_norm",
    r"mlp\.linear_fc1": "mlp.up",
    r"mlp\.linear_fc2": "mlp.down",
}
_DECODER: Final = decoder_names(r"model\.language_model\.", "model.language_model.")
NAMES: Final[NameMap] = replace(
    _DECODER,
    rules=(
        *_DECODER.rules,
        *tower_rules(r"model\.visual\.", _IN_BLOCK, _MERGER),
        NameRule(r"model\.visual\.pos_embed\.weight", "vision.positions.weight"),
        *(
            NameRule(
                rf"model\.visual\.deepstack_merger_list\.(?P<n>\d+)\.{name}{TENSOR}",
                f"vision.deepstack.{{n}}.{own}.{{tensor}}",
            )
            for name, own in _MERGER.items()
        ),
    ),
)
"""A quantization names the decoder's layers alone: the tower stays as it is."""
_LAYER: Final = r"model\.language_model\.layers\.(?P<n>\d+)\."
MOE_NAMES: Final[NameMap] = replace(
    NAMES,
    rules=(*NAMES.rules, *experts.qwen_rules(_LAYER), *of_all(rf"{_LAYER}mlp\.", stacked_either_way)),
    linear=(*NAMES.linear, *linear_of_each("model.language_model.layers.{n}.mlp.")),
)
"""Published checkpoints hold the matrices of experts with their inputs first; transformers writes outputs first."""

TEXT_DEFAULTS: Final[Config] = {
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rope_theta": 500_000.0,
}
MOE_DEFAULTS: Final[Config] = {
    **TEXT_DEFAULTS,
    "num_key_value_heads": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
}
SECTIONS: Final = (24, 20, 20)
DEEPSTACK: Final = (8, 16, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3VisionSpec(QwenVisionSpec):
    """A tower with learned positions, of which some blocks make rows, too (DeepStack)."""

    grid_side: int
    """Learned positions of a side of their square, interpolated for items of any other grid."""
    deepstack: tuple[int, ...]
    """Blocks, in order, behind each of which rows are made for the decoder's next layer, from its first on."""

    @property
    def num_deepened(self) -> int:
        return len(self.deepstack)

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        patches = linear_elements(hidden, self.patch_numbers)
        block = 4 * hidden + self.attention_elements + linear_elements(inner, hidden) + linear_elements(hidden, inner)
        norms = 2 * hidden + 2 * len(self.deepstack) * self.merged_size
        mergers = (1 + len(self.deepstack)) * self.merger_elements
        return patches + self.grid_side**2 * hidden + self.num_blocks * block + norms + mergers


def read_qwen3_vl(config: Config, generation: Config) -> ModelSpec:
    return _read(config, generation, TEXT_DEFAULTS, read_qwen3)


def read_qwen3_vl_moe(config: Config, generation: Config) -> ModelSpec:
    """The weights of a token's experts are always divided by their sum."""

    def read_text(text: Config, generation: Config) -> ModelSpec:
        text = {"num_experts": text.get("num_local_experts", 60), **text}  # saved under either name
        return experts.read_qwen3_moe({**text, "norm_topk_prob": True}, generation)

    return _read(config, generation, MOE_DEFAULTS, read_text)


def _read(
    config: Config, generation: Config, defaults: Config, read_text: Callable[[Config, Config], ModelSpec]
) -> ModelSpec:
    """The decoder as `read_text` reads its section, `defaults` for what that leaves out, and the tower."""
    text = {"eos_token_id": config.get("eos_token_id"), **defaults, **section(config, TEXT)}
    outside = {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(text),
        "tie_word_embeddings": config.get("tie_word_embeddings"),
        "use_sliding_window": False,
    }
    with inside(TEXT):
        spec = read_text({**text, **outside}, generation)
        head_dim = spec.layers[0].attention.head_dim
        axes = read_pair_axes(text, head_dim, SECTIONS, interleaved=True)
    tower = section(config, VISION)
    with inside(VISION):
        vision = _read_vision(tower)
        _refuse_other_rows(vision, spec)
    return replace(spec, layers=tuple(layer.turned_by(axes) for layer in spec.layers), vision=vision)


def _read_vision(config: Config) -> Qwen3VisionSpec:
    positions = integer(config, "num_position_embeddings", 2304)
    side = isqrt(positions)
    if side * side != positions:
        raise ModelError("num_position_embeddings", f"must be those of a square grid, got {positions}")
    return Qwen3VisionSpec(
        **tower_sizes(config, "hidden_size", 16),
        intermediate_size=integer(config, "intermediate_size"),
        output_size=integer(config, "out_hidden_size"),
        grid_side=side,
        deepstack=counts(config, "deepstack_visual_indexes", DEEPSTACK, most=MAX_LAYERS),
        activation=ungated_activation(config, "gelu_pytorch_tanh"),
    )


def _refuse_other_rows(vision: Qwen3VisionSpec, text: ModelSpec) -> None:
    """Raises ModelError for rows that do not fit the decoder."""
    refuse_other_width(vision, text, "out_hidden_size")
    blocks = vision.deepstack
    if list(blocks) != sorted(set(blocks)) or any(block >= vision.num_blocks for block in blocks):
        message = f"must be blocks of the {vision.num_blocks} in order, each once, got {shown(list(blocks))}"
        raise ModelError("deepstack_visual_indexes", message)
    if len(blocks) > len(text.layers):
        message = f"names {len(blocks)} blocks, but the decoder has {len(text.layers)} layers to add their rows behind"
        raise ModelError("deepstack_visual_indexes", message)
