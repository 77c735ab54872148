"""Images of Idefics3 and SmolVLM: tiles of one size out of an image that is enlarged to whole tiles, each with its row
and column before it, and the whole image once more as the last tile.

Tiles and texts are those of transformers' `Idefics3ImageProcessorPil` and `Idefics3Processor`, and of those of SmolVLM,
of each image as of one that comes alone.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.squares import Squares
from quire.frontend.media.families.view import Item, View, each_alone

CHANNELS = 3
LANCZOS = 1
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": LANCZOS}
"""Settings that have one value here."""
SPLITTING = "do_image_splitting"
SETTINGS = ("size", SPLITTING)
STATED = {
    "longest": "size",
    "is_cut": SPLITTING,
    "side": "max_image_size",
    "placeholder_id": "image_token_id",
    "patch": "vision_config.patch_size",
    "merge": "scale_factor",
}
"""Fields of a family -> their names in files."""
MODEL_TYPES = ("idefics3", "smolvlm")
DEFAULT_TILE, DEFAULT_LONGEST = 364, 1456
DEFAULT_TOKEN = 128_257
"""Values that are meant where files leave them out."""
MAX_SIDE = 4096
"""Most pixels of a side, as in transformers."""
MAX_TILES = 128
"""Most tiles that settings may allow of an image: all lie in memory when it has been resized."""
AROUND, ALL, ROW = "<fake_token_around_image>", "<global-img>", "<image>"


class IdeficsImages(Squares, frozen=True, forbid_unknown_fields=True, tag="idefics3", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = "idefics3"
    placeholder: ClassVar[str] = ROW
    """Text of the token that stands for an image in a rendered chat, and for each of its rows."""
    resample: ClassVar[int] = LANCZOS
    spells: ClassVar[bool] = True

    placeholder_id: int
    side: int
    """Pixels of a tile's side. The tower reads the whole patches of it."""
    longest: int
    """Pixels of an image's longer side before it is cut."""
    is_cut: bool = True
    """False: an image is one tile, whatever its size."""

    def __post_init__(self) -> None:
        if min(self.patch, self.merge, self.side) < 1 or self.side // self.patch % self.merge or self.side < self.patch:
            message = f"tiles of {self.side} pixels have no whole squares of {self.merge} patches of {self.patch}"
            raise ValueError(f"max_image_size: {message}")
        if not 1 <= self.longest <= MAX_SIDE or self.max_items > MAX_TILES + 1:
            most = min(math.isqrt(MAX_TILES) * self.side // 2 * 2, MAX_SIDE)  # an odd one may grow by a pixel
            raise ValueError(f"size: longest_edge must be from 1 to {most} pixels, got {self.longest}")

    @property
    def read(self) -> int:
        """Pixels of a tile's side that the tower reads."""
        return self.side // self.patch * self.patch

    @property
    def max_items(self) -> int:
        """Number of tiles that no image exceeds."""
        rows = -(-(self.longest + self.longest % 2) // self.side)
        return rows**2 + 1 if self.is_cut and rows > 1 else 1

    @property
    def max_tokens(self) -> int:
        """Number of tokens that no image exceeds, without those of its text."""
        return self.max_items * self.num_tokens(self.grid(self.read, self.read))

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        return self.max_items * self.read**2 * CHANNELS

    def num_columns(self, height: int, width: int) -> int:
        """Tiles that stand side by side, of an image of so many pixels."""
        return self._cut(*self._first_size(height, width))[1] // self.side

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The tiles of an image of so many pixels, row by row, and all of it unless that is the one tile."""
        side, read = self.side, self.read
        first = self._first_size(height, width)
        size = self._cut(*first)
        if size == (side, side):
            return each_alone((View(size, (0, 0, read, read), (first,)),), self.grid)
        tiles = [
            View(size, (left, top, left + read, top + read), (first,))
            for top in range(0, size[0], side)
            for left in range(0, size[1], side)
        ]
        return each_alone([*tiles, View((side, side), (0, 0, read, read), (first, size))], self.grid)

    def spelled(self, num_items: int, columns: int = 1) -> str:
        """The text that stands for an image, with a placeholder for each tile; so many of them stand side by side."""
        whole = f"{AROUND}{ALL}{ROW}{AROUND}"
        if num_items == 1:
            return whole
        rows = (
            "".join(f"{AROUND}<row_{row + 1}_col_{column + 1}>{ROW}" for column in range(columns)) + "\n"
            for row in range((num_items - 1) // columns)
        )
        return f"{''.join(rows)}\n{whole}"

    def with_settings(self, settings: Mapping[str, Any]) -> "IdeficsImages":
        """The family with the longer side of images, `size`, or none that is cut. Raises `ValueError`."""
        for name in settings:
            if name not in SETTINGS:
                raise ValueError(f"{name}: is no setting of this model's images; it has {', '.join(SETTINGS)}")
        changes: dict[str, Any] = {"longest": _edge(settings, "size", self.longest)}
        if SPLITTING in settings:
            changes["is_cut"] = settings[SPLITTING]
        return _converted(msgspec.to_builtins(self) | changes)

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image is resized before it is cut: its longer side is `longest`, the other one
        even."""
        aspect = width / height
        if width >= height:
            height = int(self.longest / aspect)
            return max(height + height % 2, 1), self.longest
        width = int(self.longest * aspect)
        return self.longest, max(width + width % 2, 1)

    def _cut(self, height: int, width: int) -> tuple[int, int]:
        """Height and width in whole tiles."""
        if not self.is_cut:
            return self.side, self.side
        aspect = width / height
        if width >= height:
            width = self._whole(width)
            return self._whole(int(width / aspect)), width
        height = self._whole(height)
        return height, self._whole(int(height * aspect))

    def _whole(self, edge: int) -> int:
        return max(1, -(-edge // self.side)) * self.side


def read(files: ProcessorFiles) -> IdeficsImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    if (kind := config.get("model_type")) not in MODEL_TYPES:
        known = " and ".join(MODEL_TYPES)
        raise ValueError(f"image_processor_type: only model_type {known} have it, got {kind!r:.64}")
    check_fixed(image, FIXED)
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise ValueError("max_image_size: vision_config of config.json must state image_size, its pixels")
    side = _edge(image, "max_image_size", DEFAULT_TILE)
    if side != (stated := vision.get("image_size", 224)):
        message = f"is {side!r:.64}, but config.json has tiles of {stated!r:.64} pixels; download both files again"
        raise ValueError(f"max_image_size: {message}")
    family = _converted(
        {
            "placeholder_id": config.get("image_token_id", DEFAULT_TOKEN),
            "patch": vision.get("patch_size", 32),
            "merge": config.get("scale_factor", 2),
            "side": side,
            "longest": _edge(image, "size", DEFAULT_LONGEST),
            "is_cut": image.get(SPLITTING, True),
        }
    )
    length = family.num_tokens(family.grid(side, side))
    if (stated := files.together.get("image_seq_len", length)) != length:
        message = f"processor_config.json has {stated!r:.64}, but tiles of config.json have {length} tokens"
        raise ValueError(f"image_seq_len: {message}; download both files again")
    return family


def _edge(settings: Mapping[str, Any], name: str, default: int) -> Any:
    """Pixels of a longer side. Raises `ValueError`."""
    size = settings.get(name)
    if size is None:
        return default
    if not isinstance(size, Mapping) or set(size) != {"longest_edge"}:
        raise ValueError(f"{name}: must have longest_edge, got {size!r:.64}")
    return size["longest_edge"]


def _converted(values: Mapping[str, Any]) -> IdeficsImages:
    try:
        return msgspec.convert(values, IdeficsImages)
    except msgspec.ValidationError as error:
        found = str(error)
        for field, name in STATED.items():
            found = found.replace(f"$.{field}", name)
        raise ValueError(found) from error
