"""LLaVA-OneVision (Li et al., 2024): a decoder of text, and SigLIP's tower (Zhai et al., 2023), which reads an image
tile by tile and lays out the rows of its tiles as those of one picture."""

import re
from dataclasses import dataclass, replace
from typing import Final

from quire.proto.messages.media import PLAIN, Grid
from quire.worker.fields import (
    Activation,
    Config,
    dtype_name,
    flag,
    inside,
    integer,
    section,
    shown,
    ungated_activation,
)
from quire.worker.specs.families.llama import decoder_names, read_qwen2
from quire.worker.specs.sighted.siglip import LAST_NORM, SIGLIP_IGNORED, SIGLIP_RULES, TENSOR, read_siglip
from quire.worker.specs.spec import ModelSpec
from quire.worker.specs.vision_spec import VisionSpec, linear_elements, shared_linear_elements
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

TEXT: Final = "text_config"
VISION: Final = "vision_config"
TOWER_TENSORS: Final = r"(model\.)?(vision_tower\..+|multi_modal_projector\..+|image_newline)"
"""Pattern of the tower's tensors."""
PINPOINTS: Final = "image_grid_pinpoints"
PUBLISHED_SIDE: Final = 384
"""Side of a tile in all published models, whose files may leave `PINPOINTS` out."""
MAX_TILES: Final = 128
MAX_PINPOINTS: Final = 1024
ENOUGH: Final = 1.1
"""A grid that is by so much too high and too wide is reduced."""
OF_FRAME: Final = PLAIN + 1
OF_IMAGE: Final = PLAIN + 5
"""Lengths of the grids of a video's frame, and of an image."""
DEFAULTS: Final[Config] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 384,
}
_PROJECTOR: Final = r"(model\.)?multi_modal_projector\."
_IN_PROJECTOR: Final = {"linear_1": "up", "linear_2": "down"}
_DECODER: Final = decoder_names(r"(model\.language_model|language_model\.model)\.", "model.language_model.")
NAMES: Final[NameMap] = replace(
    _DECODER,
    rules=(
        *_DECODER.rules,
        NameRule(r"language_model\.lm_head\.(?P<tensor>\w+)", "head.{tensor}"),
        *SIGLIP_RULES,
        *(
            NameRule(rf"{_PROJECTOR}{name}{TENSOR}", f"vision.projector.{own}.{{tensor}}")
            for name, own in _IN_PROJECTOR.items()
        ),
        NameRule(r"(model\.)?image_newline", "vision.line_end.weight"),
    ),
    ignored=(*_DECODER.ignored, LAST_NORM, *SIGLIP_IGNORED),
)
"""Names as files on the hub have them, and as transformers has them in memory. Rows are made of what is before the last
norm, and not of SigLIP's head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneVisionSpec(VisionSpec):
    """A tower over tiles of one size, which stand one below the other in an item."""

    side: int
    """Patches of a tile's side."""
    tile_pixels: int
    """Pixels of a tile's side, which may be more than those of its patches."""
    projector_bias: bool
    projector_activation: Activation
    arrangements: tuple[tuple[int, int], ...]
    """Rows and columns of tiles of the grids that an image may become."""
    max_tiles: int
    """Tiles from whose number of patches on the rows of a grid are too many."""
    class_token: bool = False
    """CLIP's: a learned token stands before the patches of each tile, their embedding has no bias, and a norm stands
    before the blocks."""

    @property
    def area(self) -> int:
        """Patches of a tile."""
        return self.side**2

    @property
    def num_features(self) -> int:
        """Elements that the projector reads of a patch."""
        return self.hidden_size

    @property
    def has_lines(self) -> bool:
        """A row stands behind each line of a picture."""
        return True

    @property
    def pooled_side(self) -> int:
        """Rows of a side of a video's frame."""
        return -(-self.side // 2)

    @property
    def num_elements(self) -> int:
        hidden, inner, wide = self.hidden_size, self.intermediate_size, self.output_size
        embedding = linear_elements(hidden, self.patch_numbers) + self.area * hidden
        embedding += 3 * hidden if self.class_token else 0  # the token and its position, the norm, and no bias
        block = 4 * linear_elements(hidden, hidden) + linear_elements(inner, hidden) + linear_elements(hidden, inner)
        up = linear_elements(wide, self.num_features, bias=self.projector_bias)
        projector = up + linear_elements(wide, wide, bias=self.projector_bias) + (wide if self.has_lines else 0)
        return embedding + self.num_blocks * (block + 4 * hidden) + projector

    @property
    def shared_elements(self) -> int:
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = shared_linear_elements(hidden, hidden, columns=3)
        return self.num_blocks * (attention + shared_linear_elements(hidden, inner, columns=1))

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

    def num_rows(self, grid: Grid) -> int:
        """Rows of a tile: of its patches. Of a video's frame: of the pooled ones, and as many more as the last number
        says, none or one. Of an image: see `num_rows_of_image`."""
        if len(grid) == OF_IMAGE:
            return self.num_rows_of_image(grid)
        num_rows = VisionSpec.num_rows(self, grid[:PLAIN])
        if len(grid) == PLAIN:
            return num_rows
        if len(grid) != OF_FRAME or grid[PLAIN] not in (0, 1):
            raise ValueError(f"a frame has the number of rows behind it, 0 or 1, got {grid}")
        return self.pooled_side**2 + grid[PLAIN]

    def num_rows_of_image(self, grid: Grid) -> int:
        """Rows of its first tile, and of each line of a picture, with one more row behind each.

        The others are the picture's tiles, `columns` of them side by side; in the middle of their patches are `tall` *
        `wide`, of which the picture is made, reduced to `lines` of `length`.
        """
        frames, patches, side, columns, tall, wide, lines, length = grid
        num_tiles = patches // self.side - 1
        if (frames, side, patches % self.side) != (1, self.side, 0) or not columns or num_tiles < 1:
            raise ValueError(f"an image is of whole tiles of {self.side} patches a side, two at least, got {grid}")
        left_out = [num_tiles // columns * side - tall, columns * side - wide]
        if num_tiles % columns or min(left_out) < 0 or any(one % 2 for one in left_out):
            raise ValueError(f"the picture stands in the middle of whole rows of tiles, got {grid}")
        if (lines, length) != (tall, wide) and not (0 < lines <= tall and 0 < length <= wide):
            raise ValueError(f"a picture is reduced to lines of its rows, got {grid}")
        return self.area + lines * (length + 1)

    def patches_of(self, num_rows: int) -> int:
        return (1 + max(rows * columns for rows, columns in self.arrangements)) * self.area if num_rows else 0

    def largest_item(self, processor: Config) -> int:
        size = section(processor, "size")
        with inside("size"):
            for name in ("height", "width"):
                if (found := integer(size, name)) != self.tile_pixels:
                    raise ModelError(name, f"is {found}, but config.json has tiles of {self.tile_pixels} pixels")
        enough = int(ENOUGH**2 * self.max_tiles * self.area) + 1
        return self.area + max(
            min(rows * columns * self.area, enough) + rows * self.side for rows, columns in self.arrangements
        )


def read_llava_onevision(config: Config, generation: Config) -> ModelSpec:
    stated = {"eos_token_id": config.get("eos_token_id"), **section(config, TEXT)}
    if (kind := stated.get("model_type", "qwen2")) != "qwen2":
        raise ModelError(f"{TEXT}.model_type", f"{shown(kind)} is not supported; supported: qwen2")
    with inside(TEXT):
        is_tied = flag(stated, "tie_word_embeddings", False)
    outside = {
        "architectures": config["architectures"],
        "dtype": dtype_name(config) or dtype_name(stated),
        "tie_word_embeddings": flag(config, "tie_word_embeddings", False) or is_tied,
    }
    with inside(TEXT):
        text = read_qwen2({**stated, **outside}, generation)
    for name, only in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "full")):
        if (value := config.get(name, only)) != only:
            raise ModelError(name, f"{shown(value)} is not supported; supported: {only}")
    return replace(text, vision=_read_vision(config, text.hidden_size))


def _read_vision(config: Config, output_size: int) -> OneVisionSpec:
    tower = section(config, VISION)
    with inside(VISION):
        sizes = read_siglip(tower if tower else DEFAULTS)
    return OneVisionSpec(
        **sizes,
        output_size=output_size,
        merge_size=1,
        projector_bias=flag(config, "multimodal_projector_bias", True),
        projector_activation=ungated_activation(config, "gelu", "projector_hidden_act"),
        arrangements=_read_pinpoints(config, sizes["tile_pixels"]),
        max_tiles=_max_tiles(config.get("vision_aspect_ratio", "anyres_max_9")),
    )


def _read_pinpoints(config: Config, side: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of tiles; as published where none are stated."""
    stated = config.get(PINPOINTS)
    if stated is None:
        if side != PUBLISHED_SIDE:
            raise ModelError(PINPOINTS, f"config.json must state it for tiles of {side} pixels")
        return tuple((rows, columns) for rows in range(1, 7) for columns in range(1, 7))
    return read_arrangements(stated, side)


def read_arrangements(stated: object, side: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of the tiles of so many pixels a side that make up heights and widths."""
    sizes = stated if isinstance(stated, list) else []
    if not 1 <= len(sizes) <= MAX_PINPOINTS or not all(_is_of_tiles(size, side) for size in sizes):
        message = f"must be a list of heights and widths in whole tiles of {side} pixels, {MAX_TILES} of them at most"
        raise ModelError(PINPOINTS, f"{message}, got {shown(stated)}")
    return tuple((height // side, width // side) for height, width in sizes)


def _is_of_tiles(size: object, side: int) -> bool:
    if not isinstance(size, list) or len(size) != 2:
        return False
    if not all(type(edge) is int and edge > 0 and edge % side == 0 for edge in size):
        return False
    return bool(size[0] * size[1] <= MAX_TILES * side**2)


def _max_tiles(stated: object) -> int:
    found = re.fullmatch(r"anyres_max_(\d{1,3})", stated, re.ASCII) if isinstance(stated, str) else None
    if found is None or not 1 <= int(found[1]) <= MAX_TILES:
        raise ModelError("vision_aspect_ratio", f"must be anyres_max_N, N from 1 to {MAX_TILES}, got {shown(stated)}")
    return int(found[1])
