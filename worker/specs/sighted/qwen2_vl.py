"""Qwen2-VL (Wang et al., 2024): the decoder of Qwen2 with positions of three axes, and a plain tower."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from quire.worker.fields import Config, dtype_name, flag, inside, integer, section, ungated_activation
from quire.worker.specs.families.llama import decoder_names, read_qwen2
from quire.worker.specs.kinds.rope import read_pair_axes
from quire.worker.specs.sighted.qwen_vl import (
    TEXT,
    VISION,
    QwenVisionSpec,
    refuse_other_width,
    tower_rules,
    tower_sizes,
)
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import linear_elements
from quire.worker.weights.names import NameMap

_VISUAL: Final = r"(model\.)?visual\."
"""Files have it without the prefix; models in memory have it with one, and so do some files."""
TOWER_TENSORS: Final = rf"{_VISUAL}.+"
"""Pattern of the tower's tensors."""
_DECODER: Final = decoder_names(r"model\.(language_model\.)?", "model.")
_ATTENTION: Final = {"norm1": "attention_norm", r"attn\.proj": "output", "norm2": "mlp_norm"}
_MERGER: Final = {"ln_q": "norm", r"mlp\.0": "up", r"mlp\.2": "down"}


def names_of(mlp: Mapping[str, str]) -> NameMap:
    """The names of a model; `mlp`: of the tower's feed-forward blocks. A quantization names the decoder's layers alone:
    the tower stays as it is."""
    return replace(_DECODER, rules=(*_DECODER.rules, *tower_rules(_VISUAL, {**_ATTENTION, **mlp}, _MERGER)))


NAMES: Final = names_of({r"mlp\.fc1": "mlp.up", r"mlp\.fc2": "mlp.down"})
TEXT_DEFAULTS: Final[Config] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
    "rope_theta": 1e6,
}
SECTIONS: Final = (16, 24, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2VisionSpec(QwenVisionSpec):
    """Blocks with layer norms and one plain product in and out; every patch sees its whole item."""

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        block = 4 * hidden + self.attention_elements + linear_elements(inner, hidden) + linear_elements(hidden, inner)
        return hidden * self.patch_numbers + self.num_blocks * block + 2 * hidden + self.merger_elements


def read_qwen2_vl(config: Config, generation: Config) -> ModelSpec:
    spec = read_text(config, generation)
    tower = section(config, VISION)
    with inside(VISION):
        sizes = tower_sizes(tower, "embed_dim", 14)
        vision = Qwen2VisionSpec(
            **sizes,
            intermediate_size=sizes["hidden_size"] * integer(tower, "mlp_ratio", 4),
            output_size=integer(tower, "hidden_size"),
            activation=ungated_activation(tower, "quick_gelu"),
        )
        refuse_other_width(vision, spec, "hidden_size")
    return replace(spec, vision=vision)


def read_text(config: Config, generation: Config) -> ModelSpec:
    """The decoder, stated in a section of its own or, as first published, beside it."""
    nested = config.get(TEXT) is not None
    text: Config = {**TEXT_DEFAULTS, **(section(config, TEXT) if nested else config)}
    tied = flag(config, "tie_word_embeddings", False) or flag(text, "tie_word_embeddings", False)
    outside = {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(text),
        "tie_word_embeddings": tied,
        "head_dim": None,
    }
    with _inside_text(nested):
        text = _with_default_rope({"eos_token_id": config.get("eos_token_id"), **text})
        spec = read_qwen2({**text, **outside}, generation)
        axes = read_pair_axes(text, spec.layers[0].attention.head_dim, SECTIONS, interleaved=False)
    return replace(spec, layers=tuple(layer.turned_by(axes) for layer in spec.layers))


@contextmanager
def _inside_text(nested: bool) -> Iterator[None]:
    if not nested:
        yield
        return
    with inside(TEXT):
        yield


def _with_default_rope(text: Config) -> Config:
    """The same, its rope of type mrope called the default: what is special of it is its sections."""
    for name in ("rope_scaling", "rope_parameters"):
        stated = text.get(name)
        if isinstance(stated, dict) and stated.get("rope_type", stated.get("type")) == "mrope":
            return {**text, name: {**stated, "rope_type": "default"}}
    return text
