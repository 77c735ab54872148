"""Gemma 3 with images (Gemma Team, 2025): SigLIP's tower over images of one size, its patches averaged in squares, and
a decoder in which the tokens of an image see each other."""

from dataclasses import dataclass, replace
from math import isqrt
from typing import Final

from quire.worker.fields import Config, inside, integer, section
from quire.worker.specs.families import gemma
from quire.worker.specs.sighted.siglip import LAST_NORM, SIGLIP_IGNORED, SIGLIP_RULES, read_siglip
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.layout import Stored
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError, Part

VISION: Final = "vision_config"
_PROJECTOR: Final = r"(model\.)?multi_modal_projector\."
SIGLIP_DEFAULTS: Final[Config] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}


def inputs_first(parts: tuple[Part, ...]) -> Stored:
    """A matrix whose rows are its inputs."""
    (part,) = parts
    outputs, inputs = part.full_shape
    return Stored((inputs, outputs), ((range(inputs), range(outputs)),), transposed=True)


NAMES: Final[NameMap] = replace(
    gemma.WRAPPED_NAMES,
    rules=(
        *gemma.WRAPPED_NAMES.rules,
        *SIGLIP_RULES,
        NameRule(LAST_NORM, "vision.norm.{tensor}"),
        NameRule(rf"{_PROJECTOR}mm_soft_emb_norm\.weight", "vision.soft_norm.weight"),
        NameRule(rf"{_PROJECTOR}mm_input_projection_weight", "vision.projection.weight", layout=inputs_first),
    ),
    ignored=(*gemma.WRAPPED_NAMES.ignored, *SIGLIP_IGNORED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3VisionSpec(VisionSpec):
    """A tower over images of one size, whose rows are the averages of the squares of `merge_size` patches a side."""

    side: int
    """Patches of an image's side."""
    tile_pixels: int

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        embedding = linear_elements(hidden, self.patch_numbers) + self.side**2 * hidden
        block = 4 * linear_elements(hidden, hidden) + linear_elements(inner, hidden) + linear_elements(hidden, inner)
        return embedding + self.num_blocks * (block + 4 * hidden) + self.end_elements

    @property
    def end_elements(self) -> int:
        """Elements of the norms and the product that make rows behind the blocks."""
        return 3 * self.hidden_size + self.hidden_size * self.output_size

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=1))

    @property
    def tile_side(self) -> int:
        return self.side

    @property
    def whole_spans(self) -> bool:
        return True

    @property
    def num_tokens(self) -> int:
        """Tokens of every image."""
        return (self.side // self.merge_size) ** 2

    @property
    def processor_sizes(self) -> dict[str, int]:
        """None: it states no patches, and `largest_item` compares its pixels."""
        return {}

    def largest_item(self, processor: Config) -> int:
        size = section(processor, "size")
        with inside("size"):
            for name in ("height", "width"):
                if (found := integer(size, name)) != self.tile_pixels:
                    raise ModelError(name, f"is {found}, but config.json has images of {self.tile_pixels} pixels")
        return self.num_tokens


def read_gemma3_with_images(config: Config, generation: Config) -> ModelSpec:
    text = gemma.read_wrapped_gemma3(config, generation)
    layers = (replace(layer, attention=replace(layer.attention, looks_ahead=True)) for layer in text.layers)
    return replace(text, layers=tuple(layers), vision=_read_vision(config, text.hidden_size))


def _read_vision(config: Config, output_size: int) -> Gemma3VisionSpec:
    stated = config.get(VISION)
    with inside(VISION):
        sizes = read_siglip({**SIGLIP_DEFAULTS, **(section(config, VISION) if stated is not None else {})})
    side, num_tokens = sizes["side"], integer(config, "mm_tokens_per_image", 256)
    rows = isqrt(num_tokens)
    if rows * rows != num_tokens or side % rows or side * sizes["patch_size"] != sizes["tile_pixels"]:
        patches = f"{side} patches a side of images of {sizes['tile_pixels']} pixels"
        raise ModelError("mm_tokens_per_image", f"must be those of whole squares of {patches}, got {num_tokens}")
    return Gemma3VisionSpec(**sizes, output_size=output_size, merge_size=side // rows)
