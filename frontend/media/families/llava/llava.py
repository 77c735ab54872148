"""Images of LLaVA (1.5, and later ones with one tile): each becomes a square, by its shorter side and without the ends
of the longer, or as a whole.

Pixels and tokens are those of transformers' `CLIPImageProcessorPil`, `SiglipImageProcessorPil` and `LlavaProcessor`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.llava_onevision import FIXED
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.squares import Squares
from quire.frontend.media.families.view import Item, View
from quire.frontend.media.refused import MediaRefused

CHANNELS = 3
MODEL_TYPE = "llava"
DEFAULT_TOKEN = 32_000
DEFAULT_SIDE, DEFAULT_PATCH = 336, 14
MAX_ASPECT = 50
"""Most times that one side of an image may be the other where the ends are cut off: it is resized as a whole."""


class LlavaImages(Squares, frozen=True, forbid_unknown_fields=True, tag="llava", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = "llava"
    placeholder: ClassVar[str] = "<image>"
    """Text of the token that stands for an image in a rendered chat, and for each of its rows."""
    resample: ClassVar[int] = FIXED["resample"]
    spells: ClassVar[bool] = False
    max_items: ClassVar[int] = 1

    placeholder_id: int
    side: int
    """Pixels of a square's side. The tower reads the whole patches of it."""
    cuts: bool
    """The ends of a longer side are cut off."""

    def __post_init__(self) -> None:
        if not 1 <= self.patch <= self.side:
            raise ValueError(f"patch_size: must be from 1 to the {self.side} pixels of an image, got {self.patch}")

    @property
    def read(self) -> int:
        """Pixels of the side that the tower reads."""
        return self.side // self.patch * self.patch

    @property
    def max_tokens(self) -> int:
        """Number of tokens of every image."""
        return self.num_tokens(self.grid(self.read, self.read))

    @property
    def max_bytes(self) -> int:
        """Number of bytes of the pixels of every image."""
        return self.read**2 * CHANNELS

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The one item of an image of so many pixels. Raises `MediaRefused`."""
        size, top, left = (self.side, self.side), 0, 0
        if self.cuts:
            short, long = min(height, width), max(height, width)
            if long > MAX_ASPECT * short:
                raise MediaRefused(f"one side of {width} x {height} pixels is more than {MAX_ASPECT} times the other")
            longer = int(self.side * long / short)
            size = (self.side, longer) if height <= width else (longer, self.side)
            top, left = (size[0] - self.side) // 2, (size[1] - self.side) // 2
        view = View(size, (left, top, left + self.read, top + self.read))
        return (Item(self.grid(self.read, self.read), (view,)),)

    def spelled(self, num_items: int) -> str:
        return self.placeholder * num_items

    def with_settings(self, settings: Mapping[str, Any]) -> "LlavaImages":
        """Raises `ValueError` for any setting."""
        for name in settings:
            raise ValueError(f"{name}: is no setting of this model's images, which are all of one size")
        return self


def read(files: ProcessorFiles) -> LlavaImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    check_fixed(image, FIXED)
    if image.get("do_pad"):
        raise ValueError(f"do_pad: {image['do_pad']!r:.64} is not supported; only false is")
    vision = config.get("vision_config", {"image_size": DEFAULT_SIDE, "patch_size": DEFAULT_PATCH})
    side, patch = (vision.get(name) if isinstance(vision, Mapping) else None for name in ("image_size", "patch_size"))
    if not isinstance(side, int) or not isinstance(patch, int):
        message = f"vision_config of config.json must state pixels, got {patch!r:.64} of {side!r:.64}"
        raise ValueError(f"patch_size: {message}")
    cuts = bool(image.get("do_center_crop", files.name != "SiglipImageProcessor"))
    size, crop = image.get("size"), image.get("crop_size")
    squares: list[object] = [{"height": side, "width": side}]
    for name, found, taken in (
        ("size", size, [{"shortest_edge": side}] if cuts else squares),
        ("crop_size", crop, squares if cuts else [crop]),
    ):
        if found not in taken:
            message = f"is {found!r:.64}, but config.json has images of {side} pixels"
            raise ValueError(f"{name}: {message}; download both files again")
    token = config.get("image_token_index", config.get("image_token_id", DEFAULT_TOKEN))
    values = {"placeholder_id": token, "patch": patch, "merge": 1, "side": side, "cuts": cuts}
    try:
        return msgspec.convert(values, LlavaImages)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$.placeholder_id", "image_token_index")) from error
