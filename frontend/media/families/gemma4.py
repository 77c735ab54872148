"""Images of Gemma 4: of any size, resized to the most whole tokens of their aspect that a budget holds, between two
tokens that bound them.

Sizes, pixels and texts are those of transformers' `Gemma4ImageProcessorPil` and `Gemma4Processor`, and of those of the
12B kind.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.budget_size import BUDGET, budget_size, check_budget
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.squares import Squares
from quire.frontend.media.families.videos.gemma4 import Gemma4Videos
from quire.frontend.media.families.view import Item, View, each_alone

CHANNELS = 3
BICUBIC = 3
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "do_convert_rgb": True, "resample": BICUBIC}
"""Settings that have one value here."""
DEFAULT_BUDGET, OF_FRAMES = 280, 70
"""Most tokens of an image and of a video's frame where files leave them out."""
SETTINGS = (BUDGET, "fps", "num_frames")
MODEL_TYPES = {"gemma4": ("position_embedding_size", 10_240), "gemma4_unified": ("mm_posemb_size", 1120)}
"""`model_type` -> the key of the positions of a tower's rows and columns, and what is meant where it is left out."""
ALONE = "gemma4_unified"
"""The type of models without a tower, whose patches are tokens: those of this processor joined in squares."""
BEGIN, ROW, END = "<|image>", "<|image|>", "<image|>"


class Gemma4Images(Squares, frozen=True, forbid_unknown_fields=True, tag="gemma4", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = "gemma4"
    placeholder: ClassVar[str] = ROW
    """Text of the token that stands for an image in a rendered chat, and for each of its rows."""
    resample: ClassVar[int] = BICUBIC
    spells: ClassVar[bool] = True
    max_items: ClassVar[int] = 1

    placeholder_id: int
    max_tokens: int
    """Tokens that no image exceeds, and every one comes near."""
    num_positions: int
    """Rows and columns of patches that the tower tells apart."""
    videos: Gemma4Videos | None = None
    """Settings of videos; None: the model has no token for them."""

    def __post_init__(self) -> None:
        if min(self.patch, self.merge) < 1:
            raise ValueError(f"patch_size: must be at least 1 pixel, got {self.patch}, in squares of {self.merge}")
        check_budget(self.max_tokens)
        most = self.max_tokens if self.videos is None else max(self.max_tokens, self.videos.max_tokens)
        if most * self.merge > self.num_positions:
            message = f"the {most * self.merge} patches of a row may be more than {self.num_positions}"
            raise ValueError(f"{BUDGET}: {message}, which have positions; lower it")

    @property
    def unit(self) -> int:
        """Pixels of the side of a token's square."""
        return self.patch * self.merge

    @property
    def max_bytes(self) -> int:
        """Number of bytes that the pixels of no image exceed."""
        return self.max_tokens * self.unit**2 * CHANNELS

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image of so many pixels is resized."""
        return budget_size(height, width, self.unit, self.max_tokens)

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The one item of an image of so many pixels: all of it."""
        return each_alone((View.whole(*self.size(height, width)),), self.grid)

    def spelled(self, num_items: int) -> str:
        """The text that stands for an image, with a placeholder for its rows."""
        return f"{BEGIN}{ROW * num_items}{END}"

    def with_settings(self, settings: Mapping[str, Any]) -> "Gemma4Images":
        """The family with the budget of images, `max_soft_tokens`, and `fps` or `num_frames` of videos, that settings
        name. Raises `ValueError`."""
        for name in settings:
            if name not in SETTINGS:
                raise ValueError(f"{name}: is no setting of this model's images; it has {', '.join(SETTINGS)}")
        videos = None if self.videos is None else msgspec.to_builtins(self.videos.with_settings(settings))
        changes = {"max_tokens": settings.get(BUDGET, self.max_tokens), "videos": videos}
        return _converted(msgspec.to_builtins(self) | changes)


def read(files: ProcessorFiles) -> Gemma4Images | None:
    """The family of one model; None where config.json has no tower. Raises `ValueError` for settings that are not
    followed here."""
    image, config = files.image, files.config
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        known = " and ".join(MODEL_TYPES)
        raise ValueError(f"image_processor_type: only model_type {known} have it, got {kind!r:.64}")
    vision = config.get("vision_config")
    if vision is None:
        return None
    check_fixed(image, FIXED)
    if not isinstance(vision, Mapping):
        raise ValueError(f"vision_config: config.json must state an object, got {vision!r:.64}")
    sizes = {"patch_size": vision.get("patch_size", 16), "pooling_kernel_size": vision.get("pooling_kernel_size", 3)}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name}: vision_config of config.json must state a number of pixels, got {size!r:.64}")
        if (stated := image.get(name, size)) != size:
            message = f"is {stated!r:.64}, but config.json has {size}; download both files again"
            raise ValueError(f"{name}: {message}")
    name, default = MODEL_TYPES[kind]
    patch, merge = sizes.values()
    patches = {"patch": patch * merge, "merge": 1} if kind == ALONE else {"patch": patch, "merge": merge}
    return _converted(
        {
            "placeholder_id": config.get("image_token_id", 258_880),
            **patches,
            "max_tokens": image.get(BUDGET, DEFAULT_BUDGET),
            "num_positions": vision.get(name, default),
            "videos": _videos(files, sizes, patches),
        }
    )


def _videos(files: ProcessorFiles, sizes: Mapping[str, int], patches: Mapping[str, int]) -> dict[str, Any] | None:
    """The settings of a model's videos. Raises `ValueError` for a value that nothing here follows."""
    token, settings = files.config.get("video_token_id", 258_884), files.video
    if token is None:
        return None
    check_fixed(settings, {**FIXED, **sizes})
    stated = {key: settings[key] for key in ("fps", "num_frames") if settings.get(key) is not None}
    budget = settings.get(BUDGET, OF_FRAMES)
    return {"type": "gemma4", "placeholder_id": token, **patches, "max_tokens": budget, **stated}


def _converted(values: Mapping[str, Any]) -> Gemma4Images:
    try:
        return msgspec.convert(values, Gemma4Images)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$.max_tokens", BUDGET)) from error
