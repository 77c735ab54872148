"""Mistral 3, and Pixtral 12B as a LLaVA: the decoder of Mistral or Ministral 3, and Pixtral's tower (Agrawal et al.,
2024), out of whose patches a projector makes rows: of squares of them, or of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from quire.worker.fields import (
    MAX_LAYERS,
    Config,
    Gate,
    activation,
    dtype_name,
    flag,
    inside,
    integer,
    number,
    section,
    shown,
    ungated_activation,
)
from quire.worker.specs.families.llama import decoder_names, read_ministral3, read_mistral
from quire.worker.specs.kinds.rope import DEFAULT_THETA
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

TEXT: Final = "text_config"
VISION: Final = "vision_config"
TOWER: Final = r"(model\.)?vision_tower\."
PROJECTOR: Final = r"(model\.)?multi_modal_projector\."
TOWER_TENSORS: Final = r"(model\.)?(vision_tower|multi_modal_projector)\..+"
"""Pattern of the tensors that only who reads images needs."""
_BLOCK: Final = TOWER + r"transformer\.layers\.(?P<n>\d+)\."
_IN_BLOCK: Final = {
    r"attention_norm": "attention_norm",
    r"attention\.(?P<part>[qkv])_proj": "qkv.{part}",
    r"attention\.o_proj": "output",
    r"ffn_norm": "mlp_norm",
    r"feed_forward\.(?P<part>gate|up)_proj": "gate_up.{part}",
    r"feed_forward\.down_proj": "down",
}
_IN_PROJECTOR: Final = {
    r"norm\.weight": "norm.weight",
    r"patch_merger\.merging_layer\.weight": "merge.weight",
    r"linear_1\.(?P<tensor>weight|bias)": "up.{tensor}",
    r"linear_2\.(?P<tensor>weight|bias)": "down.{tensor}",
}
_DECODER: Final = decoder_names(r"(language_model\.model|model\.language_model)\.", "model.language_model.")
NAMES: Final[NameMap] = replace(
    _DECODER,
    rules=(
        *_DECODER.rules,
        NameRule(r"language_model\.lm_head\.(?P<tensor>\w+)", "head.{tensor}"),
        NameRule(TOWER + r"patch_conv\.weight", "vision.patches.weight"),
        NameRule(TOWER + r"ln_pre\.weight", "vision.norm.weight"),
        *(NameRule(rf"{_BLOCK}{name}\.weight", f"vision.blocks.{{n}}.{own}.weight") for name, own in _IN_BLOCK.items()),
        *(NameRule(PROJECTOR + name, f"vision.projector.{own}") for name, own in _IN_PROJECTOR.items()),
    ),
)
"""Files on the hub begin with `language_model.model`, and what transformers has in memory with `model.language_model`.
A quantization names the decoder's layers alone: the tower stays as it is."""

HEAD: Final = r"(language_model\.)?lm_head\.\w+"
VISION_DEFAULTS: Final[Config] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 16,
}
"""Pixtral 12B states none of them."""
MISTRAL_HEADS: Final[Config] = {"num_attention_heads": 32}
READERS: Final[Mapping[str, Callable[[Config, Config], ModelSpec]]] = MappingProxyType(
    {"mistral": read_mistral, "ministral3": read_ministral3}
)
"""`model_type` of the text -> its reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralSpec(VisionSpec):
    """A tower whose heads turn by the rows and columns of patches."""

    rope_theta: float
    gate: Gate
    """Activation of the blocks' gates."""
    num_run: int
    """Blocks behind which the patches are taken; there may be more."""
    merges: bool
    """The patches of a square become one before they are projected; else each is projected by itself."""
    projector_bias: bool
    projector_eps: float

    @property
    def num_elements(self) -> int:
        hidden, inner, wide = self.hidden_size, self.intermediate_size, self.output_size
        patches = hidden * self.patch_numbers + hidden
        block = 2 * hidden + 4 * hidden**2 + 3 * hidden * inner
        merger = hidden + hidden * self.merged_size if self.merges else 0
        up = linear_elements(wide, hidden, bias=self.projector_bias)
        return patches + self.num_blocks * block + merger + up + linear_elements(wide, wide, bias=self.projector_bias)

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3, bias=False)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=2, bias=False))

    @property
    def processor_sizes(self) -> dict[str, int]:
        """None: the processor of text and images puts sizes of its own in place of those of the image processor."""
        return {}

    def largest_item(self, processor: Config) -> int:
        """Bounds are the longest sides."""
        if not processor.get("size"):
            return 0
        size = section(processor, "size")
        with inside("size"):
            longest = integer(size, "longest_edge", 0)
            sides = (longest, longest) if longest else (integer(size, "height"), integer(size, "width"))
        unit = self.patch_size * self.merge_size
        return -(-sides[0] // unit) * -(-sides[1] // unit)


def read_mistral3(config: Config, generation: Config) -> ModelSpec:
    text = _read_text(config, generation, "mistral")
    vision = _read_vision(
        config,
        text,
        last=-1,
        merges=True,
        merge_size=integer(config, "spatial_merge_size", 2),
        projector_bias=flag(config, "multimodal_projector_bias", False),
    )
    return replace(text, vision=vision)


def read_llava(config: Config, generation: Config) -> ModelSpec:
    """Pixtral's tower alone: other towers of LLaVA are refused."""
    text = _read_text(config, generation, "llama")
    if (which := config.get("vision_feature_select_strategy", "default")) != "full":
        message = f"must be 'full': Pixtral's first patch is one like others, got {shown(which)}"
        raise ModelError("vision_feature_select_strategy", message)
    vision = _read_vision(
        config,
        text,
        last=-2,
        merges=False,
        merge_size=1,
        projector_bias=flag(config, "multimodal_projector_bias", True),
    )
    return replace(text, vision=vision)


def _read_text(config: Config, generation: Config, meant: str) -> ModelSpec:
    """The decoder; `meant`: its `model_type` where the section leaves it out."""
    text = {"eos_token_id": config.get("eos_token_id"), **section(config, TEXT)}
    with inside(TEXT):
        kind = text.get("model_type", meant)
        reader = READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise ModelError("model_type", f"{shown(kind)} is not supported; supported: {', '.join(READERS)}")
        tied = config.get("tie_word_embeddings")
        outside = {
            "architectures": config["architectures"],
            "dtype": dtype_name(config) or dtype_name(text),
            "tie_word_embeddings": text.get("tie_word_embeddings") if tied is None else tied,
        }
        return reader({**(MISTRAL_HEADS if kind == "mistral" else {}), **text, **outside}, generation)


def _read_vision(config: Config, text: ModelSpec, *, last: int, **of_projector: Any) -> PixtralSpec:
    """`last`: the layer that is meant where none is stated."""
    tower = {**VISION_DEFAULTS, **section(config, VISION)}
    with inside(VISION):
        if (kind := tower.get("model_type", "pixtral")) != "pixtral":
            raise ModelError("model_type", f"{shown(kind)} is not supported; supported: pixtral")
        if (channels := integer(tower, "num_channels", CHANNELS)) != CHANNELS:
            raise ModelError("num_channels", f"images have {CHANNELS}: red, green and blue, got {channels}")
        hidden, num_heads = integer(tower, "hidden_size"), integer(tower, "num_attention_heads")
        if hidden % (4 * num_heads):
            message = f"{num_heads} do not divide hidden_size {hidden} into heads of whole fours"
            raise ModelError("num_attention_heads", message)
        if (head_dim := integer(tower, "head_dim", hidden // num_heads)) != hidden // num_heads:
            message = f"must be hidden_size / num_attention_heads, {hidden // num_heads}, got {head_dim}"
            raise ModelError("head_dim", message)
        sizes: dict[str, Any] = {
            "num_blocks": integer(tower, "num_hidden_layers", most=MAX_LAYERS),
            "hidden_size": hidden,
            "intermediate_size": integer(tower, "intermediate_size"),
            "num_heads": num_heads,
            "patch_size": integer(tower, "patch_size"),
            "gate": activation(tower, "gelu"),
            "rope_theta": _theta(tower),
        }
    return PixtralSpec(
        **sizes,
        output_size=text.hidden_size,
        activation=ungated_activation(config, "gelu", "projector_hidden_act"),
        norm_eps=1e-5,
        num_run=_num_run(config, last, sizes["num_blocks"]),
        projector_eps=text.norm.eps,
        **of_projector,
    )


def _num_run(config: Config, last: int, num_blocks: int) -> int:
    """Blocks that `vision_feature_layer` lets run: it is a place among their inputs and the last one's output."""
    stated = config.get("vision_feature_layer", last)
    layer = stated[0] if isinstance(stated, list) and len(stated) == 1 else stated
    if isinstance(layer, bool) or not isinstance(layer, int) or not -num_blocks - 1 <= layer <= num_blocks:
        message = f"must be one place in [{-num_blocks - 1}, {num_blocks}], got {shown(stated)}"
        raise ModelError("vision_feature_layer", f"{message}; correct config.json")
    return layer % (num_blocks + 1)


def _theta(config: Config) -> float:
    """The base of the angles, of the new form or the old one."""
    rope = section(config, "rope_parameters") if config.get("rope_parameters") is not None else {}
    if (kind := rope.get("rope_type", "axial")) not in ("axial", "default"):
        raise ModelError("rope_parameters", f"rope_type {shown(kind)} is not supported; supported: axial")
    return number(rope, "rope_theta", number(config, "rope_theta", DEFAULT_THETA))
