"""Images of LLaVA-OneVision: all of an image as one tile, and once more as a grid of tiles, of the arrangement that
shows most of it and wastes least; the rows of patches that the grid's padding alone fills are left out.

Tiles and tokens are those of transformers' `LlavaOnevisionImageProcessorPil` and `LlavaOnevisionProcessor`, of each
image as of one that comes alone, as in vLLM.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.videos.onevision import OneVisionVideos, num_pooled, read_videos
from quire.frontend.media.families.view import Item, View
from quire.frontend.media.refused import MediaRefused
from quire.proto.messages.media import PLAIN, Grid

CHANNELS = 3
BICUBIC = 3
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": BICUBIC}
"""Settings that have one value here."""
MODEL_TYPE = "llava_onevision"
PINPOINTS = "image_grid_pinpoints"
ASPECT = re.compile(r"anyres_max_(\d{1,4})", re.ASCII)
SETTINGS = (PINPOINTS, "fps", "num_frames")
PUBLISHED_SIDE = 384
"""Side of a tile in all published models, whose files may leave `PINPOINTS` out."""
MAX_TILES = 128
"""Most tiles of an arrangement: all lie in memory when an image has been resized."""
MAX_PINPOINTS = 1024
ENOUGH = 1.1
"""A grid that is by so much too high and too wide is reduced."""


class GridImages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one model whose images are a tile and a grid of tiles."""

    placeholder: ClassVar[str] = "<image>"
    """Text of the token that stands for an image in a rendered chat, and for each of its rows."""
    resample: ClassVar[int] = BICUBIC
    spells: ClassVar[bool] = False
    row_ends: ClassVar[tuple[int, int] | None] = None
    max_items: ClassVar[int] = 1
    merge: ClassVar[int] = 1

    placeholder_id: int
    patch: int
    """Pixels of a patch's side."""
    side: int
    """Pixels of a tile's side. The tower reads the whole patches of it."""
    pinpoints: tuple[tuple[int, int], ...]
    """Heights and widths, in pixels, of the grids of tiles that an image may become."""
    max_tiles: int
    """Tiles from whose number of patches on the rows of a grid are too many, and are reduced to as many."""

    def __post_init__(self) -> None:
        if not 1 <= self.patch <= self.side:
            raise ValueError(f"patch_size: must be from 1 to the {self.side} pixels of a tile, got {self.patch}")
        if not 1 <= self.max_tiles <= MAX_TILES:
            raise ValueError(f"vision_aspect_ratio: must be from 1 to {MAX_TILES} tiles, got {self.max_tiles}")
        if not 1 <= len(self.pinpoints) <= MAX_PINPOINTS:
            raise ValueError(f"{PINPOINTS}: must be from 1 to {MAX_PINPOINTS} sizes, got {len(self.pinpoints)}")
        for size in self.pinpoints:
            if min(size) < 1 or size[0] % self.side or size[1] % self.side:
                raise ValueError(f"{PINPOINTS}: must be of whole tiles of {self.side} pixels, got {list(size)}")
            if size[0] * size[1] > MAX_TILES * self.side**2:
                raise ValueError(f"{PINPOINTS}: must be of at most {MAX_TILES} tiles, got {list(size)}")

    @property
    def tile(self) -> int:
        """Patches of a tile's side."""
        return self.side // self.patch

    @property
    def max_tokens(self) -> int:
        """Number of tokens that no image exceeds."""
        area = self.tile**2
        enough = math.ceil(ENOUGH**2 * self.max_tiles * area)
        grids = ((height // self.side, width // self.side) for height, width in self.pinpoints)
        return area + max(min(rows * columns * area, enough) + rows * self.tile for rows, columns in grids)

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        most = max(height * width for height, width in self.pinpoints) // self.side**2
        return (1 + most) * (self.tile * self.patch) ** 2 * CHANNELS

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The one item of an image of so many pixels: the tile of all of it, and the grid's, row by row.

        Behind its grid stand the tiles of a row, the rows and columns of patches that show some of the image, those in
        the middle, and how many of them are left when they are reduced. Raises `MediaRefused`.
        """
        rows, columns = (edge // self.side for edge in self._best(height, width))
        seen = self._seen(height, width, rows, columns)
        grid = (1, self.tile * (1 + rows * columns), self.tile, columns, *seen, *self._reduced(*seen))
        return (Item(grid, self._views(height, width, rows, columns)),)

    def num_tokens(self, grid: Grid) -> int:
        """Tokens of an image: those of its first tile, and of each line of the grid with one behind it; or of a video's
        frame."""
        if len(grid) == PLAIN + 1:
            return num_pooled(self.tile) + grid[-1]
        lines, length = grid[-2:]
        return self.tile**2 + lines * (length + 1)

    def num_breaks(self, grid: Grid) -> int:
        return 0

    def spelled(self, num_items: int) -> str:
        return self.placeholder * num_items

    def _best(self, height: int, width: int) -> tuple[int, int]:
        """The grid's height and width: those that show most pixels, and of these the smallest."""
        best, most, least = self.pinpoints[0], -1, 0
        for size in self.pinpoints:
            scale = min(size[1] / width, size[0] / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            wasted = size[0] * size[1] - shown
            if shown > most or (shown == most and wasted < least):
                best, most, least = size, shown, wasted
        return best

    def _views(self, height: int, width: int, rows: int, columns: int) -> tuple[View, ...]:
        """The tiles: the image fills one of the grid's sides, and stands in the middle of the other."""
        side, read = self.side, self.tile * self.patch
        by_width, by_height = side * columns / width, side * rows / height
        if by_width < by_height:
            size = min(math.ceil(height * by_width), side * rows), side * columns
        else:
            size = side * rows, min(math.ceil(width * by_height), side * columns)
        top, left = (side * rows - size[0]) // 2, (side * columns - size[1]) // 2
        corners = [(side * row - top, side * column - left) for row in range(rows) for column in range(columns)]
        tiles = (View(size, (begin, upper, begin + read, upper + read)) for upper, begin in corners)
        return (View((side, side), (0, 0, read, read)), *tiles)

    def _seen(self, height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of the grid's patches without as many at two opposite edges, which are of padding alone."""
        tall, wide = self.tile * rows, self.tile * columns
        if width / height > wide / tall:
            return tall - (tall - int(round(height * (wide / width), 7))) // 2 * 2, wide
        return tall, wide - (wide - int(round(width * (tall / height), 7))) // 2 * 2

    def _reduced(self, tall: int, wide: int) -> tuple[int, int]:
        """Lines of rows of the grid, and rows of a line. Raises `MediaRefused`."""
        ratio = math.sqrt(tall * wide / (self.max_tiles * self.tile**2))
        if ratio <= ENOUGH:
            return tall, wide
        lines, length = int(tall // ratio), int(wide // ratio)
        if not lines or not length:
            raise MediaRefused(f"{wide} x {tall} patches of it are too many, and none high or wide; cut the image")
        return lines, length


class OneVisionImages(GridImages, frozen=True, forbid_unknown_fields=True, tag="llava_onevision", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = "llava_onevision"

    videos: OneVisionVideos
    """Settings of videos."""

    def with_settings(self, settings: Mapping[str, Any]) -> "OneVisionImages":
        """The family with the grids of images, and `fps` or `num_frames` of videos, that settings name.

        Raises `ValueError`.
        """
        for name in settings:
            if name not in SETTINGS:
                raise ValueError(f"{name}: is no setting of this model's images; it has {', '.join(SETTINGS)}")
        changes: dict[str, Any] = {"pinpoints": settings[PINPOINTS]} if PINPOINTS in settings else {}
        videos = msgspec.to_builtins(self.videos.with_settings(settings))
        return _converted(msgspec.to_builtins(self) | changes | {"videos": videos})


def read(files: ProcessorFiles) -> OneVisionImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    if (kind := config.get("model_type")) != MODEL_TYPE:
        raise ValueError(f"image_processor_type: only model_type {MODEL_TYPE} has it, got {kind!r:.64}")
    check_fixed(image, FIXED)
    for settings in (files.together, config):
        check_fixed(settings, {"vision_feature_select_strategy": "full"})
    for name in ("do_center_crop", "crop_size"):
        if image.get(name):
            raise ValueError(f"{name}: {image[name]!r:.64} is not supported; leave it out")
    vision, size = config.get("vision_config"), image.get("size")
    if not isinstance(vision, Mapping) or not isinstance(size, Mapping):
        raise ValueError("size: must have height and width, as vision_config of config.json has image_size")
    side = size.get("height")
    if not isinstance(side, int) or [side, side] != [size.get("width"), vision.get("image_size")]:
        message = f"{dict(size)!r:.64} is no square of the {vision.get('image_size')!r:.64} pixels of config.json"
        raise ValueError(f"size: {message}; download both files again")
    token, of_videos = (_token(config, kind) for kind in ("image", "video"))
    patch = vision.get("patch_size")
    if not isinstance(patch, int):
        raise ValueError(f"patch_size: vision_config of config.json must state its pixels, got {patch!r:.64}")
    pinpoints = _alike(PINPOINTS, image, config)
    aspect = _alike("vision_aspect_ratio", files.together, config)
    videos = read_videos(files, FIXED, placeholder_id=of_videos, patch=patch, side=side)
    family = _converted(
        {
            "placeholder_id": token,
            "patch": patch,
            "side": side,
            "pinpoints": _published(side) if pinpoints is None else pinpoints,
            "max_tiles": _max_tiles("anyres_max_9" if aspect is None else aspect),
            "videos": msgspec.to_builtins(videos),
        }
    )
    if (stated := files.together.get("num_image_tokens", family.tile**2)) != family.tile**2:
        message = f"processor_config.json has {stated!r:.64}, but tiles of config.json have {family.tile**2}"
        raise ValueError(f"num_image_tokens: {message}; download both files again")
    return family


def _converted(values: Mapping[str, Any]) -> OneVisionImages:
    try:
        return msgspec.convert(values, OneVisionImages)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$.pinpoints", PINPOINTS)) from error


def _token(config: Mapping[str, Any], kind: str) -> int:
    """The token of images, or of videos."""
    token = config.get(f"{kind}_token_index", config.get(f"{kind}_token_id"))
    if not isinstance(token, int):
        raise ValueError(f"{kind}_token_index: config.json must state a token, got {token!r:.64}")
    return token


def _alike(name: str, processor: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """A setting that two files may state: by one of them images are cut, by the other rows are laid out."""
    first, second = processor.get(name), config.get(name)
    if first is not None and second is not None and first != second:
        raise ValueError(f"{name}: is another one in config.json; download both files again")
    return second if first is None else first


def _published(side: int) -> list[list[int]]:
    """The grids of published models, of up to six tiles a side. Raises `ValueError` for tiles of other models."""
    if side != PUBLISHED_SIDE:
        raise ValueError(f"{PINPOINTS}: must be stated for tiles of {side} pixels")
    return [[side * rows, side * columns] for rows in range(1, 7) for columns in range(1, 7)]


def _max_tiles(aspect: object) -> int:
    found = ASPECT.fullmatch(aspect) if isinstance(aspect, str) else None
    if found is None:
        raise ValueError(f"vision_aspect_ratio: {aspect!r:.64} is not supported; only anyres_max_N is")
    return int(found[1])
