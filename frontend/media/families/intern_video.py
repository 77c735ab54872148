"""Videos of InternVL: frames out of the middles of equally long parts, each of them a tile with a text before it.

Frames and texts are those of transformers' `InternVLVideoProcessor` and `InternVLProcessor`, but that 32 frames are
read where nothing else is said, as in vLLM, and every frame of a video that has fewer.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.frame_rate import check_fps
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.proto.messages.media import NO_VIDEO

TILE = "<IMG_CONTEXT>"
"""Text of the token that stands for each row of a tile."""
NUM_FRAMES = 32
"""Frames that are read where nothing else is said."""
MAX_FRAMES = 768
"""Most frames that are read of a video."""


class InternVideos(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="internvl", kw_only=True):
    """The settings of one model. An item is one frame, which its tower reads as a tile of an image."""

    placeholder: ClassVar[str] = "<video>"
    """Text of the token that stands for a video in a rendered chat."""
    frames_per_item: ClassVar[int] = 1
    max_frames: ClassVar[int] = MAX_FRAMES

    placeholder_id: int
    """The token that stands for each row of a frame: that of tiles."""
    patch: int
    side: int
    """Pixels of a frame's side."""
    num_frames: int | None = None
    """Frames that are read in all."""
    fps: float | None = None
    """Frames that are read of a second, unless `num_frames` says how many in all."""

    def __post_init__(self) -> None:
        if self.num_frames is not None and not 1 <= self.num_frames <= MAX_FRAMES:
            raise ValueError(f"num_frames: must be from 1 to {MAX_FRAMES}, got {self.num_frames}")
        if self.fps is not None:
            check_fps(self.fps)

    @property
    def max_pixels(self) -> int:
        """Number of pixels that no frame exceeds."""
        return self.side**2

    def sample(self, num_frames: int, fps: float) -> list[int]:
        """The frames to read of a video with so many frames, in their order."""
        asked: float | None = self.num_frames
        if asked is None:
            asked = NUM_FRAMES if self.fps is None else num_frames / fps * self.fps
        wanted = int(min(max(asked, 1), MAX_FRAMES, num_frames))
        step = num_frames / wanted
        return [int(middle) for middle in array("f", [step / 2 + step * part for part in range(wanted)])]

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width to which each frame is resized, whatever its own are."""
        return self.side, self.side

    def seconds(self, indices: Sequence[int], num_frames: int, fps: float) -> list[float]:
        """The time of each frame."""
        return [index / fps for index in indices]

    def spelled(self, seconds: Sequence[float]) -> str:
        """The text that stands for frames of these times in a rendered chat, with a `TILE` for each."""
        return "\n".join(f"Frame{number}: <img>{TILE}</img>" for number in range(1, len(seconds) + 1))

    def elapsed(self, seconds: Sequence[float]) -> list[int]:
        """`MediaSpan.elapsed` of the frames: none goes on with another one."""
        return [NO_VIDEO] * len(seconds)

    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, int, int]:
        """The grid of an item of so many frames of this size."""
        return num_frames, height // self.patch, width // self.patch

    def with_settings(self, settings: Mapping[str, Any]) -> "InternVideos":
        """The same with `fps` or `num_frames` that settings name. Raises `ValueError`."""
        changes: dict[str, Any] = {}
        if settings.get("fps") is not None:
            changes |= {"fps": settings["fps"], "num_frames": None}
        if settings.get("num_frames") is not None:
            changes["num_frames"] = settings["num_frames"]
        return msgspec.convert(msgspec.to_builtins(self) | changes, InternVideos)


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
