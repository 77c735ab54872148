"""Videos of LLaVA-OneVision: frames at equal distances, each a tile whose patches are pooled, and one row behind all.

Frames and tokens are those of transformers' `BaseVideoProcessor` and `LlavaOnevisionProcessor`, but that 32 frames are
read where nothing else is said, as in vLLM, and every frame of a video that has fewer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.videos.tiles import TileVideos
from quire.proto.messages.media import Grid


class OneVisionVideos(TileVideos, frozen=True, forbid_unknown_fields=True, tag="llava_onevision", kw_only=True):
    """The settings of one model."""

    placeholder: ClassVar[str] = "<video>"
    """Text of the token that stands for a video in a rendered chat, and for each row of a frame."""

    def spelled(self, seconds: Sequence[float]) -> str:
        return self.placeholder * len(seconds)

    def grid(self, num_frames: int, height: int, width: int, *, is_last: bool = False) -> Grid:
        """The grid of a frame; the number behind it: rows behind all of the video."""
        return num_frames, height // self.patch, width // self.patch, int(is_last)


def num_pooled(side: int) -> int:
    """Tokens of a frame of so many patches a side: as many of two of them."""
    return (-(-side // 2)) ** 2


def read_videos(
    files: ProcessorFiles, fixed: Mapping[str, Any], *, placeholder_id: int, patch: int, side: int
) -> OneVisionVideos:
    """The settings of a model's videos, whose frames are resized to `side` pixels.

    `fixed`: see `check_fixed`. Raises `ValueError` for a value that nothing here follows.
    """
    settings = files.video
    check_fixed(settings, {**fixed, "size": {"height": side, "width": side}})
    check_fixed(settings, {key: files.image[key] for key in ("image_mean", "image_std") if key in files.image})
    frames = OneVisionVideos(placeholder_id=placeholder_id, patch=patch, side=side)
    return frames.with_settings({key: settings[key] for key in ("fps", "num_frames") if key in settings})
