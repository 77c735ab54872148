"""Images of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: of any size, rounded to whole tokens, within bounds of pixels.

Sizes and tokens are those of transformers' `Qwen2VLImageProcessorPil`.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.bounds import BOUNDS, changed_bounds, stated_bounds, wrong_size
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.qwen_size import MAX_ASPECT, check_aspect, rounded_size
from quire.frontend.media.families.squares import Squares
from quire.frontend.media.families.videos.qwen import Qwen2Videos, Qwen3Videos, read_videos
from quire.frontend.media.families.view import Item, View, each_alone
from quire.frontend.media.kind import MediaKind

CHANNELS = 3
BICUBIC = 3
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": BICUBIC}
"""Settings that have one value here."""


class QwenImages(Squares, frozen=True, forbid_unknown_fields=True, tag="qwen"):
    """The settings of one model, by the names that its files give them."""

    kind: ClassVar[str] = "qwen"
    placeholder: ClassVar[str] = "<|image_pad|>"
    """Text of the token that stands for an image in a rendered chat."""
    resample: ClassVar[int] = BICUBIC
    spells: ClassVar[bool] = False
    max_items: ClassVar[int] = 1
    counted: ClassVar[int] = 1
    """Frames as which the bounds count an image."""

    placeholder_id: int = msgspec.field(name="image_token_id")
    patch: int = msgspec.field(name="patch_size")
    """Pixels of a patch's side."""
    merge: int = msgspec.field(name="merge_size")
    """Patches of the side of the square that is one token."""
    min_pixels: int
    """Fewest pixels of an image: a smaller one is enlarged."""
    max_pixels: int
    """Most pixels of an image: a larger one is reduced."""
    videos: Qwen2Videos | Qwen3Videos | None = None
    """Settings of videos; None: it takes none."""

    def __post_init__(self) -> None:
        for name in ("patch", "merge", "min_pixels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.max_pixels < self.min_pixels:
            raise ValueError(f"min_pixels: {self.min_pixels} exceeds max_pixels, {self.max_pixels}")

    @property
    def unit(self) -> int:
        """Pixels of the side of a token's square."""
        return self.patch * self.merge

    @property
    def max_tokens(self) -> int:
        """Number of tokens that no image exceeds.

        One that is reduced stays within `max_pixels`, unless its shorter side would be less than a token. One that is
        enlarged to `min_pixels` is rounded up by less than a token on both sides, which adds most where they differ
        most.
        """
        most = self.max_pixels // self.counted
        one_row = math.isqrt(MAX_ASPECT * most) // self.unit
        side, stretch = math.sqrt(self.min_pixels / self.counted) / self.unit, math.sqrt(MAX_ASPECT)
        enlarged = math.floor((side * stretch + 1) * (side / stretch + 1))
        return max(most // self.unit**2, one_row, enlarged)

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        return self.max_tokens * self.unit**2 * CHANNELS

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image of so many pixels is resized. Raises `MediaRefused`."""
        check_aspect(height, width)
        return rounded_size(height, width, self.unit, self.min_pixels, self.max_pixels)

    def views(self, height: int, width: int) -> tuple[View, ...]:
        """The one item of an image of so many pixels: all of it. Raises `MediaRefused`."""
        return (View.whole(*self.size(height, width)),)

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The items of an image of so many pixels, a view each. Raises `MediaRefused`."""
        return each_alone(self.views(height, width), self.grid)

    def spelled(self, num_items: int) -> str:
        return self.placeholder * num_items

    def with_settings(
        self, settings: Mapping[str, Any], kinds: Collection[MediaKind] = ("image", "video")
    ) -> "QwenImages":
        """The family as settings name it: `min_pixels`, `max_pixels`, or `size`, of images and videos alike.

        And `fps` or `num_frames` of videos. `kinds`: those whose settings change. Raises `ValueError`.
        """
        names = [*BOUNDS, "size", *(("fps", "num_frames") if self.videos is not None else ())]
        for name in settings:
            if name not in names:
                raise ValueError(f"{name}: is no setting of this model's images; it has {', '.join(names)}")
        size = settings.get("size")
        if isinstance(size, Mapping) and not set(size) <= set(BOUNDS.values()):
            raise wrong_size(size)
        changes: dict[str, Any] = changed_bounds(settings, self.min_pixels) if "image" in kinds else {}
        if self.videos is not None and "video" in kinds:
            changes["videos"] = msgspec.to_builtins(self.videos.with_settings(settings))
        return msgspec.convert(msgspec.to_builtins(self) | changes, type(self))


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
    values = stated_bounds(processor) | stated | {"image_token_id": config["image_token_id"]}
    images = msgspec.convert(values, QwenImages)
    videos = read_videos(files, FIXED)
    if videos is not None and (videos.patch, videos.merge) != (images.patch, images.merge):
        raise ValueError(f"patch_size, merge_size: {videos.patch}, {videos.merge} of videos are not those of images")
    return msgspec.structs.replace(images, videos=videos)
