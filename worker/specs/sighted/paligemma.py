"""PaliGemma (Beyer et al., 2024) and PaliGemma 2 (Steiner et al., 2024): SigLIP's tower over images of one size, a row
of each patch, and Gemma's decoder, in which the tokens of a prompt see each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from quire.worker.fields import Config, dtype_name, flag, inside, integer, section, shown
from quire.worker.specs.families import gemma
from quire.worker.specs.families.llama import decoder_names
from quire.worker.specs.sighted.gemma3 import SIGLIP_DEFAULTS, Gemma3VisionSpec
from quire.worker.specs.sighted.siglip import LAST_NORM, SIGLIP_IGNORED, SIGLIP_RULES, read_siglip
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import linear_elements
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

VISION: Final = "vision_config"
TEXT: Final = "text_config"
BOTH_WAYS: Final = "use_bidirectional_attention"
_TOWER_RULES: Final = (
    *SIGLIP_RULES,
    NameRule(LAST_NORM, "vision.norm.{tensor}"),
    NameRule(r"(model\.)?multi_modal_projector\.linear\.(?P<tensor>weight|bias)", "vision.projection.{tensor}"),
)
_OF_GEMMA: Final = decoder_names(r"(language_model\.model|model\.language_model)\.", "model.language_model.")
NAMES: Final[NameMap] = replace(
    gemma.WRAPPED_NAMES,
    rules=(*gemma.WRAPPED_NAMES.rules, *_TOWER_RULES),
    ignored=(*gemma.WRAPPED_NAMES.ignored, *SIGLIP_IGNORED),
)
"""Names of a text of Gemma 2."""
FIRST_NAMES: Final[NameMap] = replace(
    _OF_GEMMA,
    rules=(*_OF_GEMMA.rules, NameRule(r"language_model\.lm_head\.(?P<tensor>\w+)", "head.{tensor}"), *_TOWER_RULES),
    ignored=(*_OF_GEMMA.ignored, *SIGLIP_IGNORED),
)
"""Names of a text of Gemma 1, whose norms stand before every part alone."""
GEMMA_SIZES: Final[Config] = {
    "model_type": "gemma",
    "vocab_size": 257_152,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}
"""Those of a config.json without a section of the text."""
TOWER_SIZES: Final[Config] = {
    "hidden_size": 1152,
    "intermediate_size": 4096,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
}
READERS: Final[Mapping[str, Callable[[Config, Config], ModelSpec]]] = MappingProxyType(
    {"gemma": gemma.read_gemma, "gemma2": gemma.read_gemma2}
)
"""`model_type` of the text -> its reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaliGemmaVisionSpec(Gemma3VisionSpec):
    """The same tower, whose patches are projected as they are."""

    @property
    def end_elements(self) -> int:
        return 2 * self.hidden_size + linear_elements(self.output_size, self.hidden_size)


def names_of(spec: ModelSpec) -> NameMap:
    """Names of a checkpoint by where the layers of its text have norms."""
    return NAMES if spec.layers[0].norms == "both" else FIRST_NAMES


def read_paligemma(config: Config, generation: Config) -> ModelSpec:
    """A context is never longer than the window of a layer: the tokens of a prompt see each other whatever it is."""
    text = _read_text(config, generation)
    if (width := integer(config, "projection_dim", text.hidden_size)) != text.hidden_size:
        raise ModelError("projection_dim", f"rows of {width} are no hidden states of {text.hidden_size}")
    vision = _read_vision(config, text.hidden_size)
    windows = [one.attention.window for one in text.layers if isinstance(one.attention.window, int)]
    longest = min([text.max_model_len, *windows])
    if vision.num_tokens >= longest:
        raise ModelError(
            f"{VISION}.image_size", f"an image is {vision.num_tokens} tokens, and windows of {longest} see no more"
        )
    layers = (replace(one, attention=replace(one.attention, window=None, looks_ahead=True)) for one in text.layers)
    return replace(text, layers=tuple(layers), max_model_len=longest, two_way_prompts=True, vision=vision)


def _read_text(config: Config, generation: Config) -> ModelSpec:
    stated = GEMMA_SIZES if config.get(TEXT) is None else section(config, TEXT)
    with inside(TEXT):
        kind = stated.get("model_type", "gemma")
        if not isinstance(kind, str) or kind not in READERS:
            raise ModelError("model_type", f"{shown(kind)} is not supported; supported: {', '.join(READERS)}")
        if stated.get(BOTH_WAYS) is not None and not flag(stated, BOTH_WAYS, True):
            raise ModelError(BOTH_WAYS, "is false, and the tokens of this model's prompts see each other; leave it out")
        outside = {
            "architectures": config["architectures"],
            "dtype": dtype_name(config) or dtype_name(stated),
            "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
            BOTH_WAYS: False,  # the readers' word for texts without images
        }
        return READERS[kind]({"eos_token_id": config.get("eos_token_id"), **stated, **outside}, generation)


def _read_vision(config: Config, output_size: int) -> PaliGemmaVisionSpec:
    with inside(VISION):
        tower = {**SIGLIP_DEFAULTS, **section(config, VISION)} if config.get(VISION) is not None else TOWER_SIZES
        sizes = read_siglip(tower)
        if sizes["side"] * sizes["patch_size"] != sizes["tile_pixels"]:
            raise ModelError("image_size", f"{sizes['tile_pixels']} pixels are no patches of {sizes['patch_size']}")
    return PaliGemmaVisionSpec(**sizes, output_size=output_size, merge_size=1)
