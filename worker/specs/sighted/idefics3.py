"""Idefics3 (Laurençon et al., 2024) and SmolVLM: a decoder of text, and SigLIP's tower (Zhai et al., 2023), which reads
an image tile by tile and makes one row of a square of patches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from quire.worker.fields import MAX_MERGED, Config, dtype_name, flag, inside, integer, section, shown
from quire.worker.specs.families.llama import decoder_names
from quire.worker.specs.sighted.internvl import TEXT_READERS
from quire.worker.specs.sighted.siglip import read_siglip, siglip_rules
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

TEXT: Final = "text_config"
VISION: Final = "vision_config"
TOWER_TENSORS: Final = r"(model\.)?(vision_model|connector)\..+"
"""Pattern of the tower's tensors."""
TOWER_TYPES: Final = ("idefics3", "idefics3_vision", "smolvlm_vision")
"""`model_type` of the tower; the first is that of the first files."""
DEFAULTS: Final[Config] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
DEFAULT_TILE: Final = 364
"""Pixels of a tile's side where the files of the image processor leave it out."""
_TOWER: Final = r"(model\.)?vision_model\."
_DECODER: Final = decoder_names(r"(model\.)?text_model\.", "model.text_model.")
NAMES: Final[NameMap] = replace(
    _DECODER,
    rules=(
        *_DECODER.rules,
        *siglip_rules(_TOWER),
        NameRule(rf"{_TOWER}post_layernorm\.(?P<tensor>weight|bias)", "vision.norm.{tensor}"),
        NameRule(r"(model\.)?connector\.modality_projection\.proj\.weight", "vision.projection.weight"),
    ),
)
"""A quantization names the decoder's layers alone: the tower stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdeficsVisionSpec(VisionSpec):
    """A tower over tiles of one size."""

    side: int
    """Patches of a tile's side."""
    tile_pixels: int
    """Pixels of a tile's side, which may be more than those of its patches."""

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        embedding = linear_elements(hidden, self.patch_numbers) + self.side**2 * hidden
        block = 4 * linear_elements(hidden, hidden) + linear_elements(inner, hidden) + linear_elements(hidden, inner)
        projection = self.merged_size * self.output_size
        return embedding + self.num_blocks * (block + 4 * hidden) + 2 * hidden + projection

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=1))

    @property
    def tile_side(self) -> int:
        return self.side

    @property
    def processor_sizes(self) -> dict[str, int]:
        """None: it states no patches, and `largest_item` compares its pixels."""
        return {}

    def largest_item(self, processor: Config) -> int:
        size: Mapping[str, object] = {}
        if processor.get("max_image_size") is not None:
            size = section(processor, "max_image_size")
        with inside("max_image_size"):
            if (found := integer(size, "longest_edge", DEFAULT_TILE)) != self.tile_pixels:
                message = f"is {found}, but config.json has tiles of {self.tile_pixels} pixels"
                raise ModelError("longest_edge", message)
        return (self.side // self.merge_size) ** 2


def read_idefics3(config: Config, generation: Config) -> ModelSpec:
    """Idefics3 and SmolVLM, whose configs are alike."""
    text = {"eos_token_id": config.get("eos_token_id"), **section(config, TEXT)}
    outside = {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(text),
        "tie_word_embeddings": flag(config, "tie_word_embeddings", False),
    }
    with inside(TEXT):
        kind = text.get("model_type", "llama")
        if not isinstance(kind, str) or kind not in TEXT_READERS:
            raise ModelError("model_type", f"{shown(kind)} is not supported; supported: {', '.join(TEXT_READERS)}")
        spec = TEXT_READERS[kind]({**text, **outside}, generation)
    merge = integer(config, "scale_factor", 2, most=MAX_MERGED)
    tower = {**DEFAULTS, **section(config, VISION)}
    with inside(VISION):
        if (kind := tower.pop("model_type", TOWER_TYPES[0])) not in TOWER_TYPES:
            raise ModelError("model_type", f"{shown(kind)} is not supported; supported: {', '.join(TOWER_TYPES)}")
        sizes = read_siglip(tower)
        if sizes["side"] % merge:
            message = f"must be whole squares of {merge} patches of {sizes['patch_size']} pixels"
            raise ModelError("image_size", f"{message}, got {sizes['tile_pixels']}")
    return replace(spec, vision=IdeficsVisionSpec(**sizes, output_size=spec.hidden_size, merge_size=merge))
