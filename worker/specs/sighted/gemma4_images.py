"""Gemma 4 with images of any size (2026): a tower whose patches are averaged in squares, or the 12B kind without one,
whose larger patches are rows of the decoder as they are. In larger models the tokens of an image see each other in the
layers with a window."""

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from quire.proto.messages.media import Grid
from quire.worker.fields import MAX_LAYERS, Config, Gate, activation, flag, inside, integer, number, section, shown
from quire.worker.specs.families import gemma4
from quire.worker.specs.spec import LayerSpec, ModelSpec
from quire.worker.specs.vision_spec import VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

VISION: Final = "vision_config"
TOWER_TENSORS: Final = r"model\.(vision_tower|embed_vision|vision_embedder)\..+"
"""Pattern of the tensors that only who reads images needs."""
THETA: Final = 100.0
MAX_TOKENS: Final = 280
"""Tokens of the largest image where the processor's files leave them out."""
NUM_BOUNDS: Final = 4
"""Bounds of a product: the least and the largest of its inputs and of its outputs."""
_TOWER: Final = r"model\.vision_tower\."
_BLOCK: Final = _TOWER + r"encoder\.layers\.(?P<n>\d+)\."
_IN_BLOCK: Final = {
    r"self_attn\.(?P<part>[qkv])_proj": "qkv.{part}",
    r"self_attn\.o_proj": "output",
    r"mlp\.(?P<part>gate|up)_proj": "gate_up.{part}",
    r"mlp\.down_proj": "down",
}
_NORMS: Final = {
    r"self_attn\.q_norm": "query_norm",
    r"self_attn\.k_norm": "key_norm",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_end_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_end_norm",
}
_TENSOR: Final = r"\.(?P<tensor>weight|bias)"
_EMBEDDER: Final = r"model\.(vision_embedder|embed_vision)\."
_ROWS: Final = r"model\.embed_vision\.(multimodal_embedder\.)?embedding_projection\.weight"
_TEXT_NAMES: Final = gemma4.WRAPPED_NAMES
NAMES: Final[NameMap] = replace(
    _TEXT_NAMES,
    rules=(
        *_TEXT_NAMES.rules,
        NameRule(_ROWS, "vision.projection.weight"),
        NameRule(rf"{_TOWER}patch_embedder\.input_proj\.weight", "vision.patches.weight"),
        NameRule(rf"{_TOWER}patch_embedder\.position_embedding_table", "vision.positions.weight"),
        NameRule(rf"{_TOWER}std_bias", "vision.standard.mean"),
        NameRule(rf"{_TOWER}std_scale", "vision.standard.factor"),
        *(NameRule(rf"{_BLOCK}{name}\.weight", f"vision.blocks.{{n}}.{own}.weight") for name, own in _NORMS.items()),
        *(
            NameRule(rf"{_BLOCK}{name}\.(linear\.)?(?P<tensor>\w+)", f"vision.blocks.{{n}}.{own}.{{tensor}}")
            for name, own in _IN_BLOCK.items()
        ),
        NameRule(rf"{_EMBEDDER}patch_ln1{_TENSOR}", "vision.patches.norm.{tensor}"),
        NameRule(rf"{_EMBEDDER}patch_dense{_TENSOR}", "vision.patches.{tensor}"),
        NameRule(rf"{_EMBEDDER}patch_ln2{_TENSOR}", "vision.patch_norm.{tensor}"),
        NameRule(rf"{_EMBEDDER}pos_embedding", "vision.positions.weight"),
        NameRule(rf"{_EMBEDDER}pos_norm{_TENSOR}", "vision.norm.{tensor}"),
    ),
)
"""Names as transformers stores them, which are those of the hub, and those of the 12B kind as it has them in memory."""
TOWER_DEFAULTS: Final[Config] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 64,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "position_embedding_size": 10_240,
}
PATCH_DEFAULTS: Final[Config] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "output_proj_dims": 3840,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4VisionSpec(VisionSpec, ABC):
    """A tower over images of any size, whose patches have a position of their row and one of their column."""

    num_positions: int
    """Rows and columns of patches that have one."""
    sees_whole: bool
    """The tokens of an image see each other."""

    @property
    def whole_spans(self) -> bool:
        return self.sees_whole

    @property
    def takes_videos(self) -> bool:
        """Each frame is an image."""
        return True

    @property
    def stated_sizes(self) -> tuple[int, int]:
        """Pixels of a patch's side and patches of a token's, as the processor's files call them."""
        return self.patch_size, self.merge_size

    @property
    def processor_sizes(self) -> dict[str, int]:
        return dict(zip(("patch_size", "pooling_kernel_size"), self.stated_sizes, strict=True))

    def num_rows(self, grid: Grid) -> int:
        found = VisionSpec.num_rows(self, grid)
        if max(grid[1:]) > self.num_positions:
            raise ValueError(f"rows and columns of patches have {self.num_positions} positions, got {grid}")
        return found

    def largest_item(self, processor: Config) -> int:
        return integer(processor, "max_soft_tokens", MAX_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4TowerSpec(Gemma4VisionSpec):
    """A tower of blocks, whose patches are averaged in squares of `merge_size` a side."""

    gate: Gate
    """Activation of the blocks' gates."""
    rope_theta: float
    standardizes: bool
    """Averages are shifted and scaled by numbers that it has learned."""
    clips: bool
    """Inputs and outputs of each product in a block are kept within bounds of its own."""

    @property
    def pixel_range(self) -> tuple[float, float]:
        return -1.0, 1.0

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        embedding = hidden * self.patch_numbers + 2 * self.num_positions * hidden
        block = 4 * hidden**2 + 3 * hidden * inner + 4 * hidden + 2 * self.head_dim
        block += 7 * NUM_BOUNDS if self.clips else 0
        standard = 2 * hidden if self.standardizes else 0
        return embedding + self.num_blocks * block + standard + hidden * self.output_size

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3, bias=False)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=2, bias=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4PatchSpec(Gemma4VisionSpec):
    """No tower: each patch is a token, normed, multiplied and normed."""

    joined: int
    """Patches of the processor of a side of its patches."""

    @property
    def pixel_range(self) -> tuple[float, float]:
        return 0.0, 1.0

    @property
    def stated_sizes(self) -> tuple[int, int]:
        return self.patch_size // self.joined, self.joined

    @property
    def num_elements(self) -> int:
        hidden, pixels = self.hidden_size, self.patch_numbers
        embedding = 2 * pixels + linear_elements(hidden, pixels) + 2 * self.num_positions * hidden
        return embedding + 4 * hidden + hidden * self.output_size

    @property
    def shared_elements(self) -> int:
        return 0

    def indivisible(self, group_size: int) -> list[ModelError]:
        """None: ranks share nothing of it, and make all rows alike."""
        return []


def read_gemma4_with_images(config: Config, generation: Config) -> ModelSpec:
    return _with_images(config, gemma4.read_wrapped(config, generation), None, _read_tower)


def read_unified_gemma4_with_images(config: Config, generation: Config) -> ModelSpec:
    return _with_images(config, gemma4.read_wrapped_unified(config, generation), "vision", _read_patches)


def _with_images(
    config: Config, text: ModelSpec, sees: str | None, read: Callable[[Config, ModelSpec, bool], Gemma4VisionSpec]
) -> ModelSpec:
    """`sees`: which tokens see each other where nothing is stated; text alone where config.json has no tower."""
    if config.get(VISION) is None:
        return text
    stated = section(config, "text_config").get("use_bidirectional_attention", sees)
    if stated not in (None, "vision"):
        message = f"{shown(stated)} is not supported; supported: vision, or none"
        raise ModelError("text_config.use_bidirectional_attention", message)
    with inside(VISION):
        vision = read(section(config, VISION), text, stated is not None)
    layers = text.layers if stated is None else tuple(map(_looking_ahead, text.layers))
    return replace(text, layers=layers, vision=vision)


def _looking_ahead(layer: LayerSpec) -> LayerSpec:
    """The tokens of an image see each other within windows, and nowhere else."""
    return replace(layer, attention=replace(layer.attention, looks_ahead=layer.attention.window is not None))


def _read_tower(stated: Config, text: ModelSpec, sees_whole: bool) -> Gemma4TowerSpec:
    config = {**TOWER_DEFAULTS, **stated}
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    head_dim = integer(config, "head_dim")
    if head_dim * num_heads != hidden or head_dim % 4:
        message = f"{num_heads} heads of {head_dim} must be hidden_size, {hidden}, and heads of whole fours"
        raise ModelError("head_dim", message)
    if (kv_heads := integer(config, "num_key_value_heads", num_heads)) != num_heads:
        raise ModelError("num_key_value_heads", f"must be num_attention_heads, {num_heads}, got {kv_heads}")
    gate = activation(config, "gelu_pytorch_tanh", "hidden_activation")
    return Gemma4TowerSpec(
        num_blocks=integer(config, "num_hidden_layers", most=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_heads=num_heads,
        output_size=text.hidden_size,
        patch_size=integer(config, "patch_size"),
        merge_size=integer(config, "pooling_kernel_size"),
        activation=gate,
        gate=gate,
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope_theta=_theta(config),
        num_positions=integer(config, "position_embedding_size"),
        standardizes=flag(config, "standardize", False),
        clips=flag(config, "use_clipped_linears", False),
        sees_whole=sees_whole,
    )


def _theta(config: Config) -> float:
    rope: Config = section(config, "rope_parameters") if config.get("rope_parameters") is not None else {}
    if (kind := rope.get("rope_type", "axial")) not in ("axial", "default"):
        raise ModelError("rope_parameters", f"rope_type {shown(kind)} is not supported; supported: axial")
    return number(rope, "rope_theta", THETA)


def _read_patches(stated: Config, text: ModelSpec, sees_whole: bool) -> Gemma4PatchSpec:
    config: dict[str, Any] = {**PATCH_DEFAULTS, **stated}
    hidden, joined = integer(config, "mm_embed_dim"), integer(config, "pooling_kernel_size")
    if (wide := integer(config, "output_proj_dims")) != hidden:
        raise ModelError("output_proj_dims", f"must be mm_embed_dim, {hidden}, got {wide}")
    return Gemma4PatchSpec(
        num_blocks=0,
        hidden_size=hidden,
        intermediate_size=0,
        num_heads=1,
        output_size=text.hidden_size,
        patch_size=integer(config, "patch_size") * joined,
        merge_size=1,
        joined=joined,
        activation="gelu_tanh",
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        num_positions=integer(config, "mm_posemb_size"),
        sees_whole=sees_whole,
    )


READERS: Final[Mapping[str, Callable[[Config, Config], ModelSpec]]] = MappingProxyType(
    {
        "Gemma4ForConditionalGeneration": read_gemma4_with_images,
        "Gemma4UnifiedForConditionalGeneration": read_unified_gemma4_with_images,
    }
)
"""Architectures -> what reads their config."""
