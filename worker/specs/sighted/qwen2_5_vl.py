"""Qwen2.5-VL (Bai et al., 2025): the decoder of Qwen2-VL, and a tower most of whose blocks see windows alone."""

from dataclasses import dataclass, replace
from typing import Final

from quire.worker.fields import MAX_LAYERS, Config, Gate, activation, counts, inside, integer, section
from quire.worker.specs.sighted.qwen2_vl import names_of, read_text
from quire.worker.specs.sighted.qwen_vl import VISION, QwenVisionSpec, refuse_other_width, tower_sizes
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import linear_elements
from quire.worker.weights.parts import ModelError

NAMES: Final = names_of({r"mlp\.(?P<part>gate|up)_proj": "mlp.gate_up.{part}", r"mlp\.down_proj": "mlp.down"})
WHOLE_BLOCKS: Final = (7, 15, 23, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen25VisionSpec(QwenVisionSpec):
    """Blocks with norms by the root mean square and a gate; most see windows of their item alone."""

    activation: Gate
    window: int
    """Tokens of a window's side."""
    whole_blocks: tuple[int, ...]
    """Blocks in which a patch sees its whole item."""

    @property
    def mlp_columns(self) -> int:
        return 2

    @property
    def num_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        mlp = 2 * linear_elements(inner, hidden) + linear_elements(hidden, inner)
        block = 2 * hidden + self.attention_elements + mlp
        return hidden * self.patch_numbers + self.num_blocks * block + hidden + self.merger_elements


def read_qwen2_5_vl(config: Config, generation: Config) -> ModelSpec:
    spec = read_text(config, generation)
    tower = section(config, VISION)
    with inside(VISION):
        sizes = tower_sizes(tower, "hidden_size", 14)
        unit = sizes["patch_size"] * sizes["merge_size"]
        window = integer(tower, "window_size", 112)
        if window < unit:
            raise ModelError("window_size", f"must hold a token of {unit} pixels, got {window}")
        vision = Qwen25VisionSpec(
            **sizes,
            intermediate_size=integer(tower, "intermediate_size"),
            output_size=integer(tower, "out_hidden_size"),
            activation=activation(tower, "silu"),
            window=window // unit,
            whole_blocks=counts(tower, "fullatt_block_indexes", WHOLE_BLOCKS, most=MAX_LAYERS),
        )
        refuse_other_width(vision, spec, "out_hidden_size")
    return replace(spec, vision=vision)
