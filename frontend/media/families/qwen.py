"""Images of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: of any size, rounded to whole tokens, within bounds of pixels.

Sizes and tokens are those of transformers' `Qwen2VLImageProcessorPil`.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.view import View
from quire.frontend.media.refused import MediaRefused

MAX_ASPECT = 200
CHANNELS = 3
BICUBIC = 3
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": BICUBIC}
"""Settings that have one value here."""
BOUNDS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Bounds by their old names -> their new ones in `size`. They count pixels, whatever the names mean elsewhere."""


class QwenImages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="qwen"):
    """The settings of one model, by the names that its files give them."""

    kind: ClassVar[str] = "qwen"
    placeholder: ClassVar[str] = "<|image_pad|>"
    """Text of the token that stands for an image in a rendered chat."""
    spells: ClassVar[bool] = False
    row_ends: ClassVar[tuple[int, int] | None] = None
    max_items: ClassVar[int] = 1

    placeholder_id: int = msgspec.field(name="image_token_id")
    patch: int = msgspec.field(name="patch_size")
    """Pixels of a patch's side."""
    merge: int = msgspec.field(name="merge_size")
    """Patches of the side of the square that is one token."""
    min_pixels: int
    """Fewest pixels of an image: a smaller one is enlarged."""
    max_pixels: int
    """Most pixels of an image: a larger one is reduced."""

    def __post_init__(self) -> None:
        for name in ("patch", "merge", "min_pixels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.max_pixels < self.min_pixels:
            raise ValueError(f"max_pixels: {self.max_pixels} is below min_pixels, {self.min_pixels}")

    @property
    def unit(self) -> int:
        """Pixels of the side of a token's square."""
        return self.patch * self.merge

    @property
    def max_tokens(self) -> int:
        """Number of tokens that no image exceeds.

        One that is reduced stays within `max_pixels`, unless its shorter side would be less than a token. One that is
        enlarged is rounded up on both sides.
        """
        one_row = math.isqrt(MAX_ASPECT * self.max_pixels) // self.unit
        most_rows = math.isqrt(self.min_pixels) // self.unit + 1
        enlarged = max(rows * self._most_columns(rows) for rows in range(1, most_rows + 1))
        return max(self.max_pixels // self.unit**2, one_row, enlarged)

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        return self.max_tokens * self.unit**2 * CHANNELS

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image of so many pixels is resized. Raises `MediaRefused`."""
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise MediaRefused(
                f"one side of {width} x {height} pixels is more than {MAX_ASPECT} times the other; cut the image"
            )
        unit = self.unit
        rows, columns = round(height / unit) * unit, round(width / unit) * unit
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(unit, math.floor(height / shrink / unit) * unit)
            columns = max(unit, math.floor(width / shrink / unit) * unit)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
        return rows, columns

    def views(self, height: int, width: int) -> tuple[View, ...]:
        """The one item of an image of so many pixels: all of it. Raises `MediaRefused`."""
        return (View.whole(*self.size(height, width)),)

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        """Frames, rows and columns of patches of an item of so many pixels."""
        return 1, height // self.patch, width // self.patch

    def num_tokens(self, grid: tuple[int, int, int]) -> int:
        """Tokens of an item: frames of one item are one in time."""
        _, rows, columns = grid
        return rows * columns // self.merge**2

    def num_breaks(self, grid: tuple[int, int, int]) -> int:
        return 0

    def spelled(self, num_items: int) -> str:
        return self.placeholder * num_items

    def with_settings(self, settings: Mapping[str, Any]) -> "QwenImages":
        """The family with the bounds that settings name: `min_pixels`, `max_pixels`, or `size`. Raises `ValueError`."""
        for name in settings:
            if name not in (*BOUNDS, "size"):
                known = ", ".join((*BOUNDS, "size"))
                raise ValueError(f"{name}: is no setting of this model's images; it has {known}")
        size = settings.get("size")
        if isinstance(size, Mapping) and not set(size) <= set(BOUNDS.values()):
            raise _wrong_size(size)
        return msgspec.convert(msgspec.to_builtins(self) | _bounds(settings), QwenImages)

    def _most_columns(self, rows: int) -> int:
        """Most tokens of the longer side of an enlarged image whose shorter side has so many."""
        longest = math.sqrt(MAX_ASPECT * self.min_pixels)
        if rows > 1:  # the shorter side is above rows - 1 tokens, and both together are `min_pixels`
            longest = min(longest, self.min_pixels / ((rows - 1) * self.unit))
        return math.floor(longest / self.unit) + 1


def read(files: ProcessorFiles) -> QwenImages | None:
    """The family of one model.

    None where the model has no token for images. Nothing is assumed: raises `ValueError` for a setting that is missing,
    or has a value that nothing here follows.
    """
    processor, config = files.image, files.config
    if config.get("image_token_id") is None:
        return None
    check_fixed(processor, FIXED)
    stated = {name: processor[name] for name in ("patch_size", "merge_size") if name in processor}
    values = _bounds(processor) | stated | {"image_token_id": config["image_token_id"]}
    return msgspec.convert(values, QwenImages)


def _bounds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds of pixels in settings. An old name goes before the new one, as in transformers."""
    size = settings.get("size") or {}
    if not isinstance(size, Mapping):
        raise _wrong_size(size)
    old = {name: settings.get(name) for name in BOUNDS}
    stated = {name: size.get(BOUNDS[name]) if value is None else value for name, value in old.items()}
    return {name: value for name, value in stated.items() if value is not None}


def _wrong_size(size: object) -> ValueError:
    return ValueError(f"size: must have shortest_edge and longest_edge, got {size!r}")
