"""Videos of InternVL: frames out of the middles of equally long parts, each of them a tile with a text before it.

Frames and texts are those of transformers' `InternVLVideoProcessor` and `InternVLProcessor`, but that 32 frames are
read where nothing else is said, as in vLLM, and every frame of a video that has fewer.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.videos.tiles import TileVideos

TILE = "<IMG_CONTEXT>"
"""Text of the token that stands for each row of a tile."""


class InternVideos(TileVideos, frozen=True, forbid_unknown_fields=True, tag="internvl", kw_only=True):
    """The settings of one model. The token of a frame's rows is that of tiles."""

    placeholder: ClassVar[str] = "<video>"
    """Text of the token that stands for a video in a rendered chat."""

    def sample(self, num_frames: int, fps: float) -> list[int]:
        wanted = self.wanted(num_frames, fps)
        step = num_frames / wanted
        return [int(middle) for middle in array("f", [step / 2 + step * part for part in range(wanted)])]

    def spelled(self, seconds: Sequence[float]) -> str:
        """The text that stands for frames of these times in a rendered chat, with a `TILE` for each."""
        return "\n".join(f"Frame{number}: <img>{TILE}</img>" for number in range(1, len(seconds) + 1))


def read_videos(
    files: ProcessorFiles, fixed: Mapping[str, Any], *, placeholder_id: int, patch: int, side: int
) -> InternVideos:
    """The settings of a model's videos, whose frames are tiles of `side` pixels.

    `fixed`: see `check_fixed`. Raises `ValueError` for a value that nothing here follows.
    """
    settings = files.video
    check_fixed(settings, {**fixed, "initial_shift": True, "size": {"height": side, "width": side}})
    check_fixed(settings, {key: files.image[key] for key in ("image_mean", "image_std") if key in files.image})
    frames = InternVideos(placeholder_id=placeholder_id, patch=patch, side=side)
    return frames.with_settings({key: settings[key] for key in ("fps", "num_frames") if key in settings})
