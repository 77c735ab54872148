"""Images of Pixtral and Mistral 3: of any size within a square, rounded up to tokens, with a token behind each row.

Sizes and tokens are those of transformers' `PixtralImageProcessorPil` and `PixtralProcessor`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.view import Item, View, each_alone
from quire.frontend.media.refused import MediaRefused
from quire.proto.messages.media import Grid

CHANNELS = 3
BICUBIC = 3
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": BICUBIC}
"""Settings that have one value here."""
BREAK, END = "[IMG_BREAK]", "[IMG_END]"
MODEL_TYPES = ("mistral3", "llava")
TOKENIZER = "tokenizer.json"
MAX_SIDE = 1 << 20
"""Most pixels of a side that settings may allow."""
SIZES = ("longest_edge", "height", "width")


class PixtralImages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pixtral"):
    """The settings of one model."""

    kind: ClassVar[str] = "pixtral"
    placeholder: ClassVar[str] = "[IMG]"
    """Text of the token that stands for an image in a rendered chat."""
    resample: ClassVar[int] = BICUBIC
    spells: ClassVar[bool] = False
    max_items: ClassVar[int] = 1

    placeholder_id: int
    row_ends: tuple[int, int]
    """The tokens behind each row of an image, and behind its last one."""
    patch: int
    """Pixels of a patch's side."""
    merge: int
    """Patches of the side of the square that is one token."""
    max_height: int
    """Most pixels of an image's height, before it is rounded up: a higher one is reduced."""
    max_width: int

    def __post_init__(self) -> None:
        for name in ("patch", "merge"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if min(self.max_height, self.max_width) < 1:
            raise ValueError(f"size: must be at least 1 pixel, got {self.max_height} x {self.max_width}")

    @property
    def unit(self) -> int:
        """Pixels of the side of a token's square."""
        return self.patch * self.merge

    @property
    def max_tokens(self) -> int:
        """Number of tokens that no image exceeds, those behind its rows among them."""
        return -(-self.max_height // self.unit) * (-(-self.max_width // self.unit) + 1)

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        return -(-self.max_height // self.unit) * -(-self.max_width // self.unit) * self.unit**2 * CHANNELS

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image of so many pixels is resized. Raises `MediaRefused`."""
        shrink = max(height / self.max_height, width / self.max_width)
        rows, columns = height, width
        if shrink > 1:
            rows, columns = math.floor(height / shrink), math.floor(width / shrink)
        if not rows or not columns:
            most = f"{self.max_height} x {self.max_width}"
            message = f"one side of {width} x {height} pixels is nothing when it is reduced to {most}; cut the image"
            raise MediaRefused(message)
        return -(-rows // self.unit) * self.unit, -(-columns // self.unit) * self.unit

    def views(self, height: int, width: int) -> tuple[View, ...]:
        """The one item of an image of so many pixels: all of it. Raises `MediaRefused`."""
        return (View.whole(*self.size(height, width)),)

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The items of an image of so many pixels, a view each. Raises `MediaRefused`."""
        return each_alone(self.views(height, width), self.grid)

    def grid(self, height: int, width: int) -> Grid:
        """Frames, rows and columns of patches of an item of so many pixels."""
        return 1, height // self.patch, width // self.patch

    def num_tokens(self, grid: Grid) -> int:
        _, rows, columns = grid
        return rows // self.merge * (columns // self.merge + 1)

    def num_breaks(self, grid: Grid) -> int:
        return grid[1] // self.merge

    def spelled(self, num_items: int) -> str:
        return self.placeholder * num_items

    def with_settings(self, settings: Mapping[str, Any]) -> "PixtralImages":
        """The family with the bounds that settings name: `size`. Raises `ValueError`."""
        for name in settings:
            if name != "size":
                raise ValueError(f"{name}: is no setting of this model's images; the server may set size, their sides")
        height, width = _bounds(settings)
        return msgspec.convert(msgspec.to_builtins(self) | {"max_height": height, "max_width": width}, PixtralImages)


def read(files: ProcessorFiles) -> PixtralImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        known = " and ".join(MODEL_TYPES)
        raise ValueError(f"image_processor_type: only model_type {known} have it, got {kind!r:.64}")
    check_fixed(image, FIXED)
    if image.get("do_center_crop"):
        raise ValueError(f"do_center_crop: {image['do_center_crop']!r:.64} is not supported; only false is")
    vision = config.get("vision_config")
    patch = vision.get("patch_size", 16) if isinstance(vision, Mapping) else None
    sizes = {
        "patch_size": patch,
        "spatial_merge_size": config.get("spatial_merge_size", 2) if kind == "mistral3" else 1,
    }
    for name, size in sizes.items():
        if (stated := files.together.get(name, size)) != size:
            message = f"{name}: is {stated!r:.64} of processor_config.json, but config.json has {size!r:.64}"
            raise ValueError(f"{message}; download both files again")
    height, width = _bounds(image)
    placeholder, *row_ends = _token_ids(files.tokenizer / TOKENIZER, (PixtralImages.placeholder, BREAK, END))
    if (stated := config.get("image_token_id", config.get("image_token_index", placeholder))) != placeholder:
        message = f"{stated!r:.64} of config.json is not that of {PixtralImages.placeholder}, {placeholder}"
        raise ValueError(f"image_token_index: {message}; download both files again")
    values = {
        "placeholder_id": placeholder,
        "row_ends": row_ends,
        "patch": patch,
        "merge": sizes["spatial_merge_size"],
        "max_height": height,
        "max_width": width,
    }
    return msgspec.convert(values, PixtralImages)


def _bounds(settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Most pixels of height and width. Raises `ValueError`."""
    size = settings.get("size")
    if isinstance(size, Mapping) and set(size) <= set(SIZES):
        edge = size.get("longest_edge")
        sides = (edge or size.get("height"), edge or size.get("width"))
        if all(sides):
            if not all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides):
                raise ValueError(f"size: sides must be whole numbers from 1 to {MAX_SIDE}, got {sides!r:.64}")
            return sides
    raise ValueError(f"size: must have longest_edge, or height and width, got {size!r:.64}")


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken]


def _token_ids(file: Path, contents: tuple[str, ...]) -> list[int]:
    """The ids of added tokens. Raises `ValueError`."""
    try:
        added = msgspec.json.decode(file.read_bytes(), type=_Tokenizer).added_tokens
    except (OSError, ValueError) as error:
        raise ValueError(f"{TOKENIZER}: does not read: {error}") from error
    ids = {token.content: token.id for token in added}
    missing = [content for content in contents if content not in ids]
    if missing:
        raise ValueError(f"{TOKENIZER}: has no token {missing[0]}, which this model's images need; download it again")
    return [ids[content] for content in contents]
