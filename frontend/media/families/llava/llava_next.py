"""Images of LLaVA-NeXT, and of Granite Vision: tiles as of LLaVA-OneVision, whose grids are never reduced.

Tiles and tokens are those of transformers' `LlavaNextImageProcessorPil` and `LlavaNextProcessor`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.llava_onevision import FIXED, MAX_TILES, PINPOINTS, GridImages
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed

MODEL_TYPE = "llava_next"
DEFAULT_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
DEFAULT_TOKEN = 32_000


class LlavaNextImages(GridImages, frozen=True, forbid_unknown_fields=True, tag="llava_next", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = "llava_next"

    max_tiles: int = MAX_TILES
    """More than any grid has: none is reduced."""

    def with_settings(self, settings: Mapping[str, Any]) -> "LlavaNextImages":
        """The family with the grids of images that settings name. Raises `ValueError`."""
        for name in settings:
            if name != PINPOINTS:
                raise ValueError(f"{name}: is no setting of this model's images; it has {PINPOINTS}")
        changes = {"pinpoints": settings[PINPOINTS]} if settings else {}
        return _converted(msgspec.to_builtins(self) | changes)


def read(files: ProcessorFiles) -> LlavaNextImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    if (kind := config.get("model_type")) != MODEL_TYPE:
        raise ValueError(f"image_processor_type: only model_type {MODEL_TYPE} has it, got {kind!r:.64}")
    check_fixed(image, FIXED)
    vision = config.get("vision_config", {"image_size": 336, "patch_size": 14})
    if not isinstance(vision, Mapping):
        raise ValueError(f"vision_config: config.json must have a section, got {vision!r:.64}")
    side, patch = (vision.get(name) for name in ("image_size", "patch_size"))
    if not isinstance(side, int) or not isinstance(patch, int):
        raise ValueError(
            f"patch_size: vision_config of config.json must state pixels, got {patch!r:.64} of {side!r:.64}"
        )
    _check_sides(image, side)
    if (stated := files.together.get("patch_size", patch)) != patch:
        message = f"is {stated!r:.64} of processor_config.json, but config.json has {patch}"
        raise ValueError(f"patch_size: {message}; download both files again")
    pinpoints, meant = (DEFAULT_PINPOINTS if one.get(PINPOINTS) is None else one[PINPOINTS] for one in (image, config))
    if pinpoints != meant:  # by one of them images are cut, by the other rows are laid out
        raise ValueError(f"{PINPOINTS}: is another one in config.json; download both files again")
    token = config.get("image_token_index", config.get("image_token_id", DEFAULT_TOKEN))
    return _converted({"placeholder_id": token, "patch": patch, "side": side, "pinpoints": pinpoints})


def _check_sides(image: Mapping[str, Any], side: int) -> None:
    """Raises `ValueError` unless whole images and tiles become squares of so many pixels."""
    for name in ("size", "crop_size") if image.get("do_center_crop", True) else ("size",):
        found = image.get(name)
        if not isinstance(found, Mapping) or [*found.values()] not in ([side], [side, side]) or "longest_edge" in found:
            message = f"is {found!r:.64}, but config.json has tiles of {side} pixels"
            raise ValueError(f"{name}: {message}; download both files again")


def _converted(values: Mapping[str, Any]) -> LlavaNextImages:
    try:
        return msgspec.convert(values, LlavaNextImages)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("$.pinpoints", PINPOINTS).replace("$.placeholder_id", "token")) from error
