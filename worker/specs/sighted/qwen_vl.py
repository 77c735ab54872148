"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: sizes that their towers have in common, and how a config states them."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from quire.worker.fields import MAX_LAYERS, Config, integer, number, section, shown
from quire.worker.specs.kinds.rope import DEFAULT_THETA
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.names import NameRule
from quire.worker.weights.parts import ModelError

TEXT: Final = "text_config"
VISION: Final = "vision_config"
TENSOR: Final = r"\.(?P<tensor>weight|bias)"


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVisionSpec(VisionSpec, ABC):
    """A tower whose heads turn by the rows and columns of patches, and whose last block's patches are merged."""

    rope_theta: float

    @property
    def mlp_columns(self) -> int:
        """Products at the entry of a feed-forward."""
        return 1

    @property
    def merger_elements(self) -> int:
        """Elements of the two products that make a row of a square's patches."""
        wide = self.merged_size
        return linear_elements(wide, wide) + linear_elements(self.output_size, wide)

    @property
    def attention_elements(self) -> int:
        """Elements of the products of one block's attention."""
        hidden = self.hidden_size
        return linear_elements(3 * hidden, hidden) + linear_elements(hidden, hidden)

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=self.mlp_columns))

    @property
    def processor_sizes(self) -> dict[str, int]:
        return {
            "patch_size": self.patch_size,
            "merge_size": self.merge_size,
            "temporal_patch_size": self.temporal_patch_size,
        }

    def largest_item(self, processor: Config) -> int:
        """Bounds count pixels, whatever their names mean elsewhere."""
        size = section(processor, "size") if processor.get("size") else {}
        pixels = integer(processor, "max_pixels", integer(size, "longest_edge", 0))
        return pixels // (self.patch_size * self.merge_size) ** 2


def tower_sizes(config: Config, hidden_name: str, patch_size: int) -> dict[str, Any]:
    """Fields of a `QwenVisionSpec` that the three state alike. `patch_size`: what is meant where it is left out."""
    hidden, num_heads = integer(config, hidden_name), integer(config, "num_heads")
    if hidden % (4 * num_heads):
        raise ModelError("num_heads", f"{num_heads} do not divide {hidden_name} {hidden} into heads of whole fours")
    for name in ("in_channels", "in_chans"):
        if (channels := integer(config, name, CHANNELS)) != CHANNELS:
            raise ModelError(name, f"images have {CHANNELS}: red, green and blue, got {channels}")
    return {
        "num_blocks": integer(config, "depth", most=MAX_LAYERS),
        "hidden_size": hidden,
        "num_heads": num_heads,
        "patch_size": integer(config, "patch_size", patch_size),
        "temporal_patch_size": integer(config, "temporal_patch_size", 2),
        "merge_size": integer(config, "spatial_merge_size", 2),
        "rope_theta": _theta(config),
    }


def _theta(config: Config) -> float:
    stated = config.get("rope_parameters")
    if stated is None:
        return DEFAULT_THETA
    rope = section(config, "rope_parameters")
    if (kind := rope.get("rope_type", "axial")) not in ("axial", "default"):
        raise ModelError("rope_parameters", f"rope_type {shown(kind)} is not supported; supported: axial")
    return number(rope, "rope_theta", DEFAULT_THETA)


def refuse_other_width(vision: VisionSpec, text: ModelSpec, name: str) -> None:
    """Raises ModelError for rows, of the width that `name` states, that are not as wide as the decoder."""
    if vision.output_size != text.hidden_size:
        raise ModelError(name, f"must be the decoder's hidden_size {text.hidden_size}, got {vision.output_size}")


def tower_rules(visual: str, block: Mapping[str, str], merger: Mapping[str, str]) -> tuple[NameRule, ...]:
    """Rules for patches, blocks and the merger. `visual`: pattern of what stands before the tower's tensors; `block`,
    `merger`: patterns of the modules in them -> our paths."""
    in_block = rf"{visual}blocks\.(?P<n>\d+)\."
    return (
        NameRule(rf"{visual}patch_embed\.proj{TENSOR}", "vision.patches.{tensor}"),
        NameRule(rf"{in_block}attn\.qkv{TENSOR}", "vision.blocks.{n}.qkv.{part}.{tensor}", ("q", "k", "v")),
        *(NameRule(in_block + name + TENSOR, f"vision.blocks.{{n}}.{own}.{{tensor}}") for name, own in block.items()),
        *(
            NameRule(rf"{visual}merger\.{name}{TENSOR}", f"vision.merger.{own}.{{tensor}}")
            for name, own in merger.items()
        ),
    )
