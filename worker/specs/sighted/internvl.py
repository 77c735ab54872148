"""InternVL (Chen et al., 2024) as transformers lays it out: a decoder of text, and a tower that reads an image tile by
tile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from quire.worker.fields import (
    MAX_LAYERS,
    Activation,
    Config,
    dtype_name,
    flag,
    inside,
    integer,
    number,
    section,
    shown,
    ungated_activation,
)
from quire.worker.specs.families.llama import decoder_names, read_llama, read_mistral, read_qwen2, read_qwen3
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.layout import Stored, side_by_side
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError, Part

TEXT: Final = "text_config"
VISION: Final = "vision_config"
TOWER_TENSORS: Final = r"(model\.)?(vision_tower|multi_modal_projector)\..+"
"""Pattern of the tower's tensors."""
HEAD: Final = r"(language_model\.)?lm_head\.\w+"
"""Pattern of the head that a checkpoint stores unless it is the embedding."""
MERGES: Final = (1, 2, 4, 8)
QK_EPS: Final = 1e-6
PROJECTOR_EPS: Final = 1e-5
"""Epsilons of norms for which a config states none."""
NORMS: Final[Mapping[str, bool]] = MappingProxyType({"layer_norm": False, "rms_norm": True})
"""`norm_type` -> whether it is by the root mean square."""
TEXT_READERS: Final[Mapping[str, Callable[[Config, Config], ModelSpec]]] = MappingProxyType(
    {"qwen2": read_qwen2, "qwen3": read_qwen3, "llama": read_llama, "mistral": read_mistral}
)
"""`model_type` of the text -> its reader."""
_TENSOR: Final = r"\.(?P<tensor>weight|bias)"
_TOWER: Final = r"(model\.)?vision_tower\."
_BLOCK: Final = _TOWER + r"encoder\.layer\.(?P<n>\d+)\."
_PROJECTOR: Final = r"(model\.)?multi_modal_projector\."
_IN_BLOCK: Final = {
    "layernorm_before": "attention_norm",
    r"attention\.(?P<part>[qkv])_proj": "qkv.{part}",
    r"attention\.q_norm": "query_norm",
    r"attention\.k_norm": "key_norm",
    r"attention\.projection_layer": "output",
    "layernorm_after": "mlp_norm",
    r"mlp\.fc1": "mlp.up",
    r"mlp\.fc2": "mlp.down",
}
_SCALES: Final = {"lambda_1": "attention_scale", "lambda_2": "mlp_scale"}
_IN_PROJECTOR: Final = {"layer_norm": "norm", "linear_1": "up", "linear_2": "down"}


def _in_batch(parts: tuple[Part, ...]) -> Stored:
    """A part behind axes of length one, so that there are three."""
    shape, (region,), *_ = side_by_side(parts)
    before = 3 - len(shape)
    return Stored((1,) * before + shape, ((0,) * before + region,))


_DECODER: Final = decoder_names(r"(model\.language_model|language_model\.model)\.", "model.language_model.")
NAMES: Final[NameMap] = replace(
    _DECODER,
    rules=(
        *_DECODER.rules,
        NameRule(r"language_model\.lm_head\.(?P<tensor>\w+)", "head.{tensor}"),
        NameRule(rf"{_TOWER}embeddings\.patch_embeddings\.projection{_TENSOR}", "vision.patches.{tensor}"),
        NameRule(rf"{_TOWER}embeddings\.cls_token", "vision.whole.weight", layout=_in_batch),
        NameRule(rf"{_TOWER}embeddings\.position_embeddings", "vision.positions.weight", layout=_in_batch),
        *(
            NameRule(_BLOCK + name + _TENSOR, f"vision.blocks.{{n}}.{own}.{{tensor}}")
            for name, own in _IN_BLOCK.items()
        ),
        *(NameRule(_BLOCK + name, f"vision.blocks.{{n}}.{own}.weight") for name, own in _SCALES.items()),
        NameRule(rf"{_TOWER}layernorm{_TENSOR}", "vision.norm.{tensor}"),
        *(
            NameRule(rf"{_PROJECTOR}{name}{_TENSOR}", f"vision.projector.{own}.{{tensor}}")
            for name, own in _IN_PROJECTOR.items()
        ),
    ),
    ignored=(*_DECODER.ignored, rf"{_TOWER}embeddings\.mask_token"),
)
"""Names as transformers stores them, and as it has them in memory. A mask token is of training alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVisionSpec(VisionSpec):
    """A tower over tiles of one size, each with a token for all of it."""

    side: int
    """Patches of a tile's side."""
    rms_norm: bool
    """Its blocks' norms are by the root mean square."""
    qkv_bias: bool
    qk_norm: bool
    """Queries and keys are normalised, those of all heads together."""
    last_norm: bool
    """There is a norm behind the last block."""
    projector_activation: Activation

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        embedding = linear_elements(hidden, self.patch_numbers) + (2 + self.side**2) * hidden
        attention = 3 * linear_elements(hidden, hidden, bias=self.qkv_bias) + linear_elements(hidden, hidden)
        mlp = linear_elements(inner, hidden) + linear_elements(hidden, inner)
        norms = (2 if self.rms_norm else 4) * hidden + (2 * hidden if self.qk_norm else 0)
        block = attention + mlp + norms + 2 * hidden
        projector = 2 * self.merged_size + linear_elements(self.output_size, self.merged_size)
        projector += linear_elements(self.output_size, self.output_size)
        return embedding + self.num_blocks * block + (2 * hidden if self.last_norm else 0) + projector

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3, bias=self.qkv_bias)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=1))

    def indivisible(self, group_size: int) -> list[ModelError]:
        found = VisionSpec.indivisible(self, group_size)
        if self.divided and self.qk_norm and group_size > 1:
            message = "weights: the tower normalises the queries and keys of all heads together; choose data"
            found.append(ModelError("mm_encoder_tp_mode", message))
        return found

    @property
    def takes_videos(self) -> bool:
        """Each frame is a tile."""
        return True

    @property
    def tile_side(self) -> int:
        return self.side

    @property
    def processor_sizes(self) -> dict[str, int]:
        """None: it is made for tiles of any patches."""
        return {}

    def largest_item(self, processor: Config) -> int:
        size, tile = section(processor, "size"), self.side * self.patch_size
        with inside("size"):
            for name in ("height", "width"):
                if (found := integer(size, name)) != tile:
                    raise ModelError(name, f"is {found}, but config.json has tiles of {tile} pixels")
        return (self.side // self.merge_size) ** 2


def read_internvl(config: Config, generation: Config) -> ModelSpec:
    stated = {"eos_token_id": config.get("eos_token_id"), **section(config, TEXT)}
    outside = {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(stated),
        "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
    }
    kind = stated.get("model_type", "qwen2")
    if not isinstance(kind, str) or kind not in TEXT_READERS:
        message = f"{shown(kind)} is not supported; supported: {', '.join(TEXT_READERS)}"
        raise ModelError(f"{TEXT}.model_type", message)
    with inside(TEXT):
        spec = TEXT_READERS[kind]({**stated, **outside}, generation)
    _refuse_other_features(config)
    merge_size = _merge_size(config)
    projector = ungated_activation(config, "gelu", "projector_hidden_act")
    tower = section(config, VISION)
    with inside(VISION):
        vision = _read_vision(tower, merge_size, spec.hidden_size, projector)
    return replace(spec, vision=vision)


def _read_vision(config: Config, merge_size: int, output_size: int, projector: Activation) -> InternVisionSpec:
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    if hidden % num_heads:
        raise ModelError("num_attention_heads", f"{num_heads} do not divide hidden_size {hidden}")
    if (channels := integer(config, "num_channels", CHANNELS)) != CHANNELS:
        raise ModelError("num_channels", f"images have {CHANNELS}: red, green and blue, got {channels}")
    if not flag(config, "use_absolute_position_embeddings", True):
        raise ModelError("use_absolute_position_embeddings", "must be true: nothing else says where a patch stands")
    norm = config.get("norm_type", "layer_norm")
    if not isinstance(norm, str) or norm not in NORMS:
        raise ModelError("norm_type", f"{shown(norm)} is not supported; supported: {', '.join(NORMS)}")
    patch, tile = _side(config, "patch_size", 14), _side(config, "image_size", 448)
    if tile % (patch * merge_size):
        message = f"must be whole squares of {merge_size} patches of {patch} pixels, got {tile}"
        raise ModelError("image_size", message)
    return InternVisionSpec(
        num_blocks=integer(config, "num_hidden_layers", most=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_heads=num_heads,
        output_size=output_size,
        patch_size=patch,
        merge_size=merge_size,
        activation=ungated_activation(config, "gelu"),
        norm_eps=number(config, "layer_norm_eps", 1e-6),
        side=tile // patch,
        rms_norm=NORMS[norm],
        qkv_bias=flag(config, "attention_bias", False),
        qk_norm=flag(config, "use_qk_norm", False),
        last_norm=not flag(config, "use_mean_pooling", True),
        projector_activation=projector,
    )


def _side(config: Config, name: str, default: int) -> int:
    """The side of a square, which a config states as a number or twice."""
    value: Any = config.get(name)
    if not isinstance(value, list):
        return integer(config, name, default)
    sides = [integer({name: one}, name) for one in value]
    if len(sides) != 2 or sides[0] != sides[1]:
        raise ModelError(name, f"must be the two equal sides of a square, got {shown(value)}")
    return sides[0]


def _merge_size(config: Config) -> int:
    """Patches of the side of a token's square."""
    ratio = number(config, "downsample_ratio", 0.5)
    merge = round(1 / ratio) if ratio > 1 / MERGES[-1] / 2 else 0
    if merge not in MERGES or merge * ratio != 1.0:
        raise ModelError("downsample_ratio", f"must be 1, 1/2, 1/4 or 1/8, got {ratio}")
    return merge


def _refuse_other_features(config: Config) -> None:
    """Raises ModelError for patches of another block than the last, or rows for the token of all of a tile."""
    for name, only in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "default")):
        if (value := config.get(name, only)) != only:
            raise ModelError(name, f"{shown(value)} is not supported; supported: {only}")
