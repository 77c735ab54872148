"""Images of InternVL: tiles of one size out of an image that is resized to the arrangement of them that has nearly its
aspect, and the whole image once more as the last tile.

Tiles and texts are those of transformers' `GotOcr2ImageProcessorPil` and `InternVLProcessor`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.squares import Squares
from quire.frontend.media.families.videos.intern import TILE, InternVideos, read_videos
from quire.frontend.media.families.view import Item, View, each_alone

CHANNELS = 3
BICUBIC = 3
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": BICUBIC}
"""Settings that have one value here."""
SETTINGS = ("min_patches", "max_patches", "crop_to_patches")
OF_VIDEOS = ("fps", "num_frames")
MODEL_TYPE = "internvl"
MAX_TILES = 128
"""Most tiles that settings may allow of an image: all lie in memory when it has been resized."""


class InternImages(Squares, frozen=True, forbid_unknown_fields=True, tag="internvl", kw_only=True):
    """The settings of one model, by the names that its files give them."""

    kind: ClassVar[str] = "internvl"
    placeholder: ClassVar[str] = TILE
    """Text of the token that stands for an image in a rendered chat."""
    resample: ClassVar[int] = BICUBIC
    spells: ClassVar[bool] = True

    placeholder_id: int = msgspec.field(name="image_token_id")
    patch: int = msgspec.field(name="patch_size")
    """Pixels of a patch's side."""
    side: int
    """Pixels of a tile's side."""
    min_tiles: int = msgspec.field(name="min_patches", default=1)
    """Fewest tiles of an image, without the last one that shows all of it."""
    max_tiles: int = msgspec.field(name="max_patches", default=12)
    """Most of them; 1: an image is one tile."""
    is_cut: bool = msgspec.field(name="crop_to_patches", default=True)
    """False: an image is one tile, whatever its aspect."""
    videos: InternVideos
    """Settings of videos."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_tiles <= MAX_TILES:
            raise ValueError(f"max_patches: must be from 1 to {MAX_TILES}, got {self.max_tiles}")
        if not 1 <= self.min_tiles <= self.max_tiles:
            raise ValueError(f"min_patches: must be from 1 to max_patches, {self.max_tiles}, got {self.min_tiles}")
        if min(self.patch, self.merge, self.side) < 1 or self.side % (self.patch * self.merge):
            message = f"tiles of {self.side} pixels are not whole squares of {self.merge} patches of {self.patch}"
            raise ValueError(f"size: {message}")

    @property
    def max_items(self) -> int:
        """Number of tiles that no image exceeds."""
        return self.max_tiles + 1 if self.is_cut and self.max_tiles > 1 else 1

    @property
    def max_tokens(self) -> int:
        """Number of tokens that no image exceeds."""
        return self.max_items * self.num_tokens(self.grid(self.side, self.side))

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        return self.max_items * self.side**2 * CHANNELS

    def views(self, height: int, width: int) -> tuple[View, ...]:
        """The tiles of an image of so many pixels, row by row, and all of it unless that is the one tile."""
        side, whole = self.side, View.whole(self.side, self.side)
        columns, rows = self._arranged(height, width)
        if columns * rows == 1:
            return (whole,)
        size = rows * side, columns * side
        tiles = [
            View(size, (column * side, row * side, (column + 1) * side, (row + 1) * side))
            for row in range(rows)
            for column in range(columns)
        ]
        return (*tiles, whole)

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The items of an image of so many pixels, a view each."""
        return each_alone(self.views(height, width), self.grid)

    def spelled(self, num_items: int) -> str:
        """The text that stands for an image, with a placeholder for each tile."""
        return f"<img>{self.placeholder * num_items}</img>"

    def with_settings(self, settings: Mapping[str, Any]) -> "InternImages":
        """The family with numbers of tiles, and `fps` or `num_frames` of videos, that settings name.

        Raises `ValueError`.
        """
        for name in settings:
            if name not in SETTINGS + OF_VIDEOS:
                known = ", ".join(SETTINGS + OF_VIDEOS)
                raise ValueError(f"{name}: is no setting of this model's images; it has {known}")
        changes = {name: settings[name] for name in SETTINGS if name in settings}
        videos = msgspec.to_builtins(self.videos.with_settings(settings))
        return msgspec.convert(msgspec.to_builtins(self) | changes | {"videos": videos}, InternImages)

    def _arranged(self, height: int, width: int) -> tuple[int, int]:
        """Columns and rows of tiles: those with nearly the image's aspect. Of two that are as near the one with more
        tiles, while they are less than twice the image's area."""
        if not self.is_cut or self.max_tiles == 1:
            return 1, 1
        aspect, area = width / height, width * height
        best, least = (1, 1), float("inf")
        for columns, rows in _arrangements(self.min_tiles, self.max_tiles):
            difference = abs(aspect - columns / rows)
            if difference < least or (difference == least and 2 * area > self.side**2 * columns * rows):
                best, least = (columns, rows), difference
        return best


@lru_cache(maxsize=8)
def _arrangements(fewest: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows of so many tiles: by number, and then by columns."""
    found = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most // columns + 1)
        if columns * rows >= fewest
    ]
    return sorted(found, key=lambda one: one[0] * one[1])


def read(files: ProcessorFiles) -> InternImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here.

    That of crop_to_patches is none of the model's files: the processor of texts and images cuts them whatever they say.
    """
    image, config = files.image, files.config
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(
            f"image_processor_type: only model_type {MODEL_TYPE} has it, got {config.get('model_type')!r:.64}"
        )
    check_fixed(image, FIXED)
    vision, size = config.get("vision_config"), image.get("size")
    if not isinstance(vision, Mapping) or not isinstance(size, Mapping):
        raise ValueError("size: must have height and width, as vision_config of config.json has image_size")
    side = _side("size", [size.get("height"), size.get("width")])
    if side != (tile := _side("image_size", vision.get("image_size", 448))):
        raise ValueError(f"size: is {side}, but config.json has tiles of {tile} pixels; download both files again")
    token, patch = config.get("image_token_id"), _side("patch_size", vision.get("patch_size", 14))
    if not isinstance(token, int):
        raise ValueError(f"image_token_id: config.json must state a token, got {token!r:.64}")
    values = {
        "image_token_id": token,
        "patch_size": patch,
        "merge": _merge(config.get("downsample_ratio", 0.5)),
        "side": side,
        "videos": msgspec.to_builtins(read_videos(files, FIXED, placeholder_id=token, patch=patch, side=side)),
        **{name: image[name] for name in ("min_patches", "max_patches") if image.get(name) is not None},
    }
    family = msgspec.convert(values, InternImages)
    length, stated = family.num_tokens(family.grid(side, side)), config.get("image_seq_length")
    if stated is not None and stated != length:
        raise ValueError(f"image_seq_length: config.json has {stated!r:.64}, but its tiles have {length} tokens")
    return family


def _side(name: str, stated: object) -> int:
    """The side of a square, stated once or twice."""
    sides = stated if isinstance(stated, list) else [stated, stated]
    if len(sides) != 2 or sides[0] != sides[1] or not isinstance(sides[0], int):
        raise ValueError(f"{name}: must be the sides of a square, got {stated!r:.64}")
    return sides[0]


def _merge(ratio: object) -> int:
    if not isinstance(ratio, float | int) or not 0.01 < ratio <= 1 or ratio * round(1 / ratio) != 1:
        raise ValueError(f"downsample_ratio: must be 1 divided by a whole number, got {ratio!r:.64}")
    return round(1 / ratio)
