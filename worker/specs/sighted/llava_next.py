"""LLaVA-NeXT (Liu et al., 2024), Granite Vision as one, and LLaVA 1.5 (Liu et al., 2023): a decoder of text, and a
tower of CLIP (Radford et al., 2021) or SigLIP, which reads an image tile by tile and lays out the rows of its tiles as
those of one picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from quire.proto.messages.media import Grid
from quire.worker.fields import Config, dtype_name, flag, inside, integer, section, shown, ungated_activation
from quire.worker.specs.families.llama import read_llama, read_mistral, read_qwen2
from quire.worker.specs.families.llama_kin import read_granite
from quire.worker.specs.sighted import llava_onevision
from quire.worker.specs.sighted.llava_onevision import (
    MAX_TILES,
    PINPOINTS,
    TEXT,
    VISION,
    OneVisionSpec,
    read_arrangements,
)
from quire.worker.specs.sighted.mistral3 import NAMES as PIXTRAL_NAMES
from quire.worker.specs.sighted.mistral3 import read_llava as read_pixtral
from quire.worker.specs.sighted.siglip import read_siglip
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import VisionSpec
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

TOWER_TENSORS: Final = llava_onevision.TOWER_TENSORS
HEAD: Final = r"(language_model\.)?lm_head\.\w+"
_EMBEDDED: Final = r"(model\.)?vision_tower\.(vision_model\.)?"
NAMES: Final[NameMap] = replace(
    llava_onevision.NAMES,
    rules=(
        *llava_onevision.NAMES.rules,
        NameRule(rf"{_EMBEDDED}embeddings\.class_embedding", "vision.class_token.weight"),
        NameRule(rf"{_EMBEDDED}pre_layrnorm\.(?P<tensor>weight|bias)", "vision.norm.{tensor}"),  # spelt so
    ),
)
LLAVA_NAMES: Final[NameMap] = replace(
    NAMES,
    rules=tuple(dict.fromkeys((*NAMES.rules, *PIXTRAL_NAMES.rules))),
    ignored=tuple(dict.fromkeys((*NAMES.ignored, *PIXTRAL_NAMES.ignored))),
)
"""Names of every LLaVA of one tile, whatever its tower."""
CLIP, SIGLIP, PIXTRAL = "clip_vision_model", "siglip_vision_model", "pixtral"
CLIP_DEFAULTS: Final[Config] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""Those of a config.json without a section of the tower."""
DEFAULT_PINPOINTS: Final = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
LLAMA_SIZES: Final[Config] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
"""Published models leave out the sizes of their text that are the library's defaults."""
READERS: Final[Mapping[str, tuple[Callable[[Config, Config], ModelSpec], Config]]] = MappingProxyType(
    {
        "llama": (read_llama, LLAMA_SIZES),
        "mistral": (read_mistral, {**LLAMA_SIZES, "intermediate_size": 14_336}),
        "qwen2": (read_qwen2, {}),
        "granite": (read_granite, {}),
    }
)
"""`model_type` of the text -> its reader, and the sizes that may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaNextSpec(OneVisionSpec):
    """A tower whose patches are taken behind some of its blocks; grids are never reduced, and there are no frames."""

    features: tuple[int, ...]
    """Blocks behind which patches are taken, 0 before the first: the projector reads all of them side by side."""
    row_scale: float
    """Factor of the rows: that of the decoder's embeddings, by which Granite multiplies rows, too."""

    @property
    def num_features(self) -> int:
        return self.hidden_size * len(self.features)

    @property
    def takes_videos(self) -> bool:
        return False

    def largest_item(self, processor: Config) -> int:
        self.check_size(processor)
        return self.area + max(rows * self.side * (columns * self.side + 1) for rows, columns in self.arrangements)

    def check_size(self, processor: Config) -> None:
        """ModelError unless images become tiles of the tower's size."""
        size = section(processor, "size")
        with inside("size"):
            for name in ("shortest_edge",) if "shortest_edge" in size else ("height", "width"):
                if (found := integer(size, name)) != self.tile_pixels:
                    raise ModelError(name, f"is {found}, but config.json has tiles of {self.tile_pixels} pixels")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaSpec(LlavaNextSpec):
    """The same tower of an older LLaVA, whose images are one tile each."""

    @property
    def has_lines(self) -> bool:
        return False

    def num_rows(self, grid: Grid) -> int:
        return VisionSpec.num_rows(self, grid)

    def patches_of(self, num_rows: int) -> int:
        return self.area if num_rows else 0

    def largest_item(self, processor: Config) -> int:
        self.check_size(processor)
        return self.area


def read_llava_next(config: Config, generation: Config) -> ModelSpec:
    text = _read_text(config, generation, flag(config, "tie_word_embeddings", False))
    sizes = _read_vision(config, text)
    stated = DEFAULT_PINPOINTS if config.get(PINPOINTS) is None else config[PINPOINTS]
    return replace(text, vision=LlavaNextSpec(**sizes, arrangements=read_arrangements(stated, sizes["tile_pixels"])))


def read_llava(config: Config, generation: Config) -> ModelSpec:
    """LLaVA 1.5 and later ones of one tile, and Pixtral 12B, by their towers."""
    tower = config.get(VISION)
    if isinstance(tower, Mapping) and tower.get("model_type") == PIXTRAL:
        return read_pixtral(config, generation)
    with inside(TEXT):
        is_tied = flag(section(config, TEXT), "tie_word_embeddings", False)
    text = _read_text(config, generation, flag(config, "tie_word_embeddings", False) or is_tied)
    return replace(text, vision=LlavaSpec(**_read_vision(config, text, PIXTRAL), arrangements=()))


def _read_text(config: Config, generation: Config, is_tied: bool) -> ModelSpec:
    stated = {"eos_token_id": config.get("eos_token_id"), **section(config, TEXT)}
    with inside(TEXT):
        kind = stated.get("model_type", "llama")
        if not isinstance(kind, str) or kind not in READERS:
            raise ModelError("model_type", f"{shown(kind)} is not supported; supported: {', '.join(READERS)}")
        read, sizes = READERS[kind]
        outside = {
            "architectures": config["architectures"],
            "dtype": dtype_name(config) or dtype_name(stated),
            "tie_word_embeddings": is_tied,
        }
        return read({**sizes, **stated, **outside}, generation)


def _read_vision(config: Config, text: ModelSpec, *others: str) -> dict[str, Any]:
    """Fields of both specs. `others`: towers that another reader takes."""
    with inside(VISION):
        tower = {"model_type": CLIP, **(section(config, VISION) if config.get(VISION) is not None else CLIP_DEFAULTS)}
        if (kind := tower["model_type"]) not in (CLIP, SIGLIP):
            raise ModelError(
                "model_type", f"{shown(kind)} is not supported; supported: {', '.join((CLIP, SIGLIP, *others))}"
            )
        is_clip = kind == CLIP
        clip: dict[str, Any] = {"kind": CLIP, "activation": "quick_gelu", "norm_eps": 1e-5} if is_clip else {}
        sizes = read_siglip(tower, **clip)
    which, needed = config.get("vision_feature_select_strategy", "default"), "default" if is_clip else "full"
    if which != needed:
        message = f"must be {needed!r} for {shown(kind)}, got {shown(which)}"
        raise ModelError("vision_feature_select_strategy", message)
    return {
        **sizes,
        "output_size": text.hidden_size,
        "row_scale": text.embedding_scale / text.residual_scale,
        "merge_size": 1,
        "projector_bias": flag(config, "multimodal_projector_bias", True),
        "projector_activation": ungated_activation(config, "gelu", "projector_hidden_act"),
        "max_tiles": MAX_TILES,
        "class_token": is_clip,
        "features": _features(config, sizes["num_blocks"]),
    }


def _features(config: Config, num_blocks: int) -> tuple[int, ...]:
    """Blocks of `vision_feature_layer`: one place among their inputs and the last one's output, or several."""
    stated = config.get("vision_feature_layer", -2)
    places = stated if isinstance(stated, list) else [stated]
    if not 1 <= len(places) <= num_blocks or not all(
        type(one) is int and -num_blocks - 1 <= one <= num_blocks for one in places
    ):
        message = f"must be places in [{-num_blocks - 1}, {num_blocks}], got {shown(stated)}"
        raise ModelError("vision_feature_layer", f"{message}; correct config.json")
    return tuple(one % (num_blocks + 1) for one in places)
